"""A small model, its checkpoint, pictures, and a server process."""

from served import checkpoint, model, pictures, server  # noqa: F401
