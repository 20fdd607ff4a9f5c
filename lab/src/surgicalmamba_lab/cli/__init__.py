"""The verbs `study` and `bench`."""
