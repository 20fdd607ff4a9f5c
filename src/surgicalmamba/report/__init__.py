"""Tables, figures and the HTML page made from scores and predictions."""
