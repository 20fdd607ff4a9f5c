"""What may follow the model, off unless asked for: calibrated probabilities, and a forward filter over phases. Both look at the past
alone and answer at once: their declared delay is 0 frames."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from surgicalmamba.config import Section
from surgicalmamba.data.store import write_atomic
from surgicalmamba.errors import ConfigError, DataError

FORMAT = 1
Floats = NDArray[np.float64]


class ForwardFilter(Section):
    """The forward recursion of a hidden Markov model whose states are the phases.

    belief_t(i) ~ (p_t(i) / prior(i))^weight * sum_j belief_{t-1}(j) transitions(j, i), and start(i) in place of the sum at the first frame.
    A weight of 1 is the textbook filter. It takes frames for independent witnesses, which those of a recurrent model are not; a
    smaller weight, fitted with the temperature, discounts them."""

    start: tuple[float, ...] = Field(description="Probability of each phase at the first frame of a procedure.")
    transitions: tuple[tuple[float, ...], ...] = Field(description="Row j: probabilities of the next frame's phase after phase j.")
    prior: tuple[float, ...] = Field(description="Share of each phase among the training frames.")
    weight: float = Field(1.0, gt=0, le=1, description="Exponent of the evidence.")

    @model_validator(mode="after")
    def _check(self) -> "ForwardFilter":
        k = len(self.prior)
        rows = {"start": self.start, "prior": self.prior, **{f"transitions[{j}]": row for j, row in enumerate(self.transitions)}}
        if len(self.transitions) != k:
            raise ValueError(f"transitions has {len(self.transitions)} rows for {k} phases.")
        for name, row in rows.items():
            if len(row) != k or min(row) < 0 or abs(sum(row) - 1) > 1e-6:
                raise ValueError(f"{name} must be {k} probabilities that sum to 1.")
        if min(self.prior) <= 0:
            raise ValueError("prior must be positive for every phase.")
        return self

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.start), np.array(self.transitions), np.log(self.prior)

    def step(self, probabilities: Floats, belief: Floats | None) -> Floats:
        """The belief after one more frame; `belief` None before the first."""
        start, transitions, log_prior = self._arrays
        expected = start if belief is None else belief @ transitions
        with np.errstate(divide="ignore"):
            log = self.weight * (np.log(probabilities) - log_prior) + np.log(expected)
        if not np.isfinite(log).any():  # evidence for nothing but what is impossible: start anew from the evidence
            return probabilities
        return softmax(log)


class OutputStage(Section):
    """Calibration and, where there is one, the filter; fitted for one model's phases at one rate."""

    format: int = Field(FORMAT, description="Version of this file's form.")
    phases: tuple[str, ...] | None = Field(None, description="Phase names it was fitted for.")
    fps: str = Field("1", description="Frames per second of the labels it was fitted on.")
    temperature: float = Field(1.0, gt=0, description="Logits are divided by it; fitted on validation videos.")
    filter: ForwardFilter | None = Field(None, description="Forward filter; null for none.")
    fitted_on: dict[str, str | int | list[str]] = Field({}, description="Where the numbers come from.")
    measured: dict[str, dict[str, float]] = Field({}, description="Scores on the validation videos before and after.")

    @property
    def delay_frames(self) -> int:
        """Frames by which an answer is later than the model's."""
        return 0

    def apply(self, logits: Floats, belief: Floats | None) -> tuple[Floats, Floats | None]:
        """Logits (k,) of one frame -> probabilities (k,), and the filter's belief to pass with the next frame."""
        probabilities = softmax(logits / self.temperature)
        if self.filter is None:
            return probabilities, None
        belief = self.filter.step(probabilities, belief)
        return belief, belief

    def check_fits(self, n_phases: int, phases: tuple[str, ...] | None, fps: str) -> None:
        """Refuse a stage that was fitted for other phases or at another rate."""
        if self.phases is not None and phases is not None and self.phases != phases:
            raise ConfigError(f"the output stage was fitted for phases {', '.join(self.phases)}; the model has {', '.join(phases)}.")
        if self.filter is not None and len(self.filter.prior) != n_phases:
            raise ConfigError(f"the output stage is for {len(self.filter.prior)} phases; the model has {n_phases}.")
        if self.filter is not None and self.fps != fps:
            raise ConfigError(f"the output stage's transitions are per frame at {self.fps} fps; this session runs at {fps} fps.")

    @classmethod
    def load(cls, path: Path) -> "OutputStage":
        """Read a file that `save` wrote."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"cannot read output stage {path}: {error.strerror}.") from None
        except ValueError as error:
            raise DataError(f"{path} is no output stage: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DataError(f"{path} is no output stage of format {FORMAT}; write one with `surgicalmamba predict --fit-output`.")
        try:
            return cls(**document)
        except (ConfigError, TypeError) as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the stage as JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode())


PLAIN = OutputStage()
"""The model's own probabilities."""


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
