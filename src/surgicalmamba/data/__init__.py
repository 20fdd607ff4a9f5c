"""From surgical videos and annotations to checked training data. Knows no model."""
