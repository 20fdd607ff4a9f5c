"""What users measure on their own data: the regime of a procedure, and a video as a model computes it."""
