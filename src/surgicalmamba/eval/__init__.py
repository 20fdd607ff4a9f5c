"""Scores whose every number says what it is. numpy only: nothing here imports torch."""
