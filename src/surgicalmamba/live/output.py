"""The optional stage after the model: calibrated probabilities, and a forward filter over phases.

Both use the past alone and add no delay. fit_output.py fits a stage."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from surgicalmamba.config import Section
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.files import make_folder, write_atomic

FORMAT = 1
Floats = NDArray[np.float64]


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


class ForwardFilter(Section):
    """The forward recursion of a hidden Markov model whose states are the phases.

    belief_t(i) ~ (p_t(i) / prior(i))^weight * sum_j belief_{t-1}(j) transitions(j, i), with start(i) in place
    of the sum at the first frame. A weight of 1 is the textbook filter, which takes frames as independent
    evidence. Those of a recurrent model are not independent; a smaller weight, fitted with the temperature,
    discounts them."""

    start: tuple[float, ...] = Field(
        description="Probability of each phase at the first frame of a procedure."
    )
    transitions: tuple[tuple[float, ...], ...] = Field(
        description="Row j: probabilities of the next frame's phase after phase j."
    )
    prior: tuple[float, ...] = Field(description="Share of each phase among the training frames.")
    weight: float = Field(1.0, gt=0, le=1, description="Exponent of the evidence.")

    @model_validator(mode="after")
    def _check(self) -> "ForwardFilter":
        k = len(self.prior)
        if len(self.transitions) != k:
            raise ValueError(f"transitions has {len(self.transitions)} rows for {k} phases.")
        rows = {f"transitions[{j}]": row for j, row in enumerate(self.transitions)}
        for name, row in {"start": self.start, "prior": self.prior, **rows}.items():
            if len(row) != k or min(row) < 0 or abs(sum(row) - 1) > 1e-6:
                raise ValueError(f"{name} must be {k} probabilities that sum to 1.")
        if min(self.prior) <= 0:
            raise ValueError("prior must be positive for every phase.")
        return self

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.start), np.array(self.transitions), np.log(self.prior)

    def step(
        self, probabilities: Floats, belief: Floats | None, weight: float | Floats | None = None
    ) -> Floats:
        """The belief (k,) after one more frame; `belief` None before the first. Other weights than the
        filter's own are computed at once: weight (w, 1) and belief (w, k) give beliefs (w, k)."""
        start, transitions, log_prior = self._arrays
        expected = start if belief is None else belief @ transitions
        with np.errstate(divide="ignore"):
            evidence = np.log(probabilities) - log_prior
            log = (self.weight if weight is None else weight) * evidence + np.log(expected)
        possible = np.isfinite(log).any(axis=-1, keepdims=True)
        # Where all evidence is for impossible phases, the filter restarts from the evidence.
        return np.where(possible, softmax(np.where(possible, log, 0.0)), probabilities)


class OutputStage(Section):
    """Calibration and, optionally, the filter; fitted for one model's phases at one rate."""

    format: int = Field(FORMAT, description="Version of the file format.")
    phases: tuple[str, ...] | None = Field(None, description="Phase names it was fitted for.")
    fps: str = Field("1", description="Frames per second of the labels it was fitted on.")
    temperature: float = Field(
        1.0, gt=0, description="Logits are divided by it; fitted on validation videos."
    )
    filter: ForwardFilter | None = Field(None, description="Forward filter; null for none.")
    fitted_on: dict[str, str | int | list[str]] = Field({}, description="Data and protocol of the fit.")
    measured: dict[str, dict[str, float]] = Field(
        {}, description="Scores on the validation videos before and after."
    )

    @property
    def delay_frames(self) -> int:
        """Frames by which an estimate is later than the model's."""
        return 0

    def apply(self, logits: Floats, belief: Floats | None) -> tuple[Floats, Floats | None]:
        """Logits (k,) of one frame -> probabilities (k,), and the belief to pass with the next frame."""
        probabilities = softmax(logits / self.temperature)
        if self.filter is None:
            return probabilities, None
        belief = self.filter.step(probabilities, belief)
        return belief, belief

    def check_fits(self, n_phases: int, phases: tuple[str, ...] | None, fps: str) -> None:
        """Refuse a stage that was fitted for other phases or at another rate."""
        if self.phases is not None and phases is not None and self.phases != phases:
            fitted, found = ", ".join(self.phases), ", ".join(phases)
            raise ConfigError(f"the output stage was fitted for phases {fitted}; the model has {found}.")
        if self.filter is not None and len(self.filter.prior) != n_phases:
            raise ConfigError(
                f"the output stage is for {len(self.filter.prior)} phases; the model has {n_phases}."
            )
        if self.filter is not None and self.fps != fps:
            raise ConfigError(f"the filter is per frame at {self.fps} fps; this session runs at {fps} fps.")

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
            advice = "write one with `surgicalmamba predict --fit-output`"
            raise DataError(f"{path} is no output stage of format {FORMAT}; {advice}.")
        try:
            return cls(**document)
        except (ConfigError, TypeError) as error:
            raise DataError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the stage as JSON, whole or not at all."""
        make_folder(path.parent)
        write_atomic(path, json.dumps(self.model_dump(mode="json"), indent=1) + "\n")


PLAIN = OutputStage()
"""The model's own probabilities."""
