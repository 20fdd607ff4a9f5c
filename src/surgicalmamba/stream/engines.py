"""Which engine runs a model."""

from surgicalmamba.errors import SessionError
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.stream.eager import EagerEngine
from surgicalmamba.stream.engine import Engine

ENGINES = ("eager",)


def open_engine(model: SurgicalMamba, name: str) -> Engine:
    """The engine of that name for a model; `auto` is the best one that is here."""
    if name not in ("auto", *ENGINES):
        raise SessionError(f"unknown engine {name!r}; choose auto or one of: {', '.join(ENGINES)}.")
    return EagerEngine(model)
