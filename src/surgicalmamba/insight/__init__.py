"""What annotations and trained models look like from inside: the regime of a procedure, and a video seen by a model."""
