"""Engines run one frame of a recognizer: eager, compiled or exported, each checked against the model."""
