"""The parts of the equations page: sections of numbers, checks of identities, and their text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

ROUNDING = 1e-9
"""An identity computed in float64 holds to better than this."""


@dataclass(frozen=True)
class Check:
    """A statement of the paper and by how much the numbers miss it."""

    claim: str
    deviation: float
    is_identity: bool = True
    """Whether the statement is exact; the others are approximations, and their deviation is theirs."""

    @property
    def holds(self) -> bool:
        return not self.is_identity or self.deviation < ROUNDING

    @property
    def told(self) -> str:
        """Rounding as rounding, so that the text is the same on every machine; an approximation's error as it is."""
        if self.is_identity:
            return f"exact, to {ROUNDING:g}" if self.holds else f"**fails**, off by {self.deviation:.1g}"
        return f"approximate, off by {100 * self.deviation:.2g} %"


@dataclass(frozen=True)
class Section:
    """One part of the page. Labels name the paper's equations; the figure is drawn when it is wanted."""

    title: str
    labels: str
    prose: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]
    figure_name: str
    caption: str
    draw: Callable[[], Figure]

    def markdown(self, images: str) -> str:
        table = ["| " + " | ".join(row) + " |" for row in (self.head, *self.rows)]
        table.insert(1, "|---" + "|---:" * (len(self.head) - 1) + "|")
        checks = ["| statement | numbers |", "|---|---|", *(f"| {check.claim} | {check.told} |" for check in self.checks)]
        picture = f"![{self.caption}]({images}/{self.figure_name}.png)"
        parts = [
            f"## {self.title}",
            f"Equations {self.labels}.",
            self.prose,
            "\n".join(table),
            "\n".join(checks),
            picture,
            f"*{self.caption}*",
        ]
        return "\n\n".join(parts) + "\n"


def deviation(found: Tensor, stated: Tensor) -> float:
    """Largest difference, relative to the largest value; where all values are zero, the difference itself."""
    scale = float(stated.abs().max()) or 1.0
    return float((found - stated).abs().max()) / scale if found.numel() else math.nan


def panels(figure: Figure, count: int) -> Sequence[Axes]:
    """Axes side by side."""
    return [figure.add_subplot(1, count, number + 1) for number in range(count)]
