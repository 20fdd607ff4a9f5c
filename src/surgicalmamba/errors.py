"""Exceptions a user can meet. Each message is one line: what was wrong, where, and what to do about it."""


class SurgicalMambaError(Exception):
    """Base of every error for a user's mistake or a broken input. The command line prints it and exits 1."""


class ConfigError(SurgicalMambaError):
    """A setting is unknown, out of range, or contradicts another one."""


class InputError(SurgicalMambaError):
    """A tensor, array or argument has the wrong shape, type or values."""


class CheckpointError(SurgicalMambaError):
    """Weights cannot be read, do not fit the model, or come from a file we refuse to open."""


class NonFiniteError(SurgicalMambaError):
    """A NaN or infinity appeared; the message names where. `lane` is the row of the batch, if known."""

    def __init__(self, message: str, lane: int | None = None) -> None:
        super().__init__(message)
        self.lane = lane


class DataError(SurgicalMambaError):
    """A video, label file or prepared dataset is missing, broken or inconsistent; the message names it."""


class StudyError(SurgicalMambaError):
    """A job of a study failed; the message names it and where its output is."""


class SessionError(SurgicalMambaError):
    """A live session cannot be opened or resumed: unknown or duplicate name, no room, no engine."""


class SnapshotError(SurgicalMambaError):
    """A snapshot of a session is refused: it is damaged, of another version or of another model."""


class EngineError(SurgicalMambaError):
    """An engine cannot run here, or its results differ from the model's; the message has the figures."""


class ServerError(SurgicalMambaError):
    """A live server refused, is away, or speaks another version; the message names it and what it said."""
