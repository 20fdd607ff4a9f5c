"""The phase at one moment of an operation: the record, and every form in which it is written and read.

A session makes one PhaseEstimate per frame. A server numbers it within its session: ServedEstimate. The forms
are derived from the fields of these two records, so a new field is declared once, here:

    JSON              `as_dict`, `from_dict`            a line of `stream --out`, a message of the server
    columns           `to_columns`, `from_columns`      the REST interface
    database row      `DATABASE_COLUMNS`, `to_row`, `from_row`
    prediction file   `to_prediction`

A form written before a field existed lacks it; the field then gets its default."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar, get_type_hints

import numpy as np

if TYPE_CHECKING:
    from surgicalmamba.eval.files import VideoPrediction

Quality = Literal["ok", "missing", "black", "frozen", "unreadable", "late"]
"""The input at a tick of the model's clock.

ok          a picture (or feature vector) like any other
missing     nothing: the timestamps jumped over this tick
black       a picture with almost no pixel brighter than the endoscope's margin
frozen      the same picture as at the previous tick
unreadable  not a picture: None, another shape or type, values that are not finite
late        a picture that was dropped because inference was behind"""

Fed = Literal["input", "held", "neutral"]
"""The model's input at a tick: the input itself, the last features again, or an empty picture."""


@dataclass(frozen=True)
class Counts:
    """Ticks of a session that were not ordinary, by quality and by what the model was fed."""

    missing: int = 0
    black: int = 0
    frozen: int = 0
    unreadable: int = 0
    late: int = 0
    held: int = 0
    """Ticks at which the last features were fed again."""
    neutral: int = 0
    """Ticks at which an empty picture was fed."""
    skipped: int = 0
    """Ticks that passed without a frame for the model."""

    @property
    def nonzero(self) -> dict[str, int]:
        """The counters that are not zero; `Counts(**nonzero)` is the reverse."""
        return {name: value for name, value in vars(self).items() if value}

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class PhaseEstimate:
    """The phase at one frame of the model's time, from that frame and the past alone."""

    frame_index: int
    """Frames of this procedure that the model saw before this one."""
    tick: int
    """Tick of the model's clock; ahead of `frame_index` by the ticks that were skipped."""
    time_s: float
    """Source time of the picture in seconds; of the tick where there was no picture."""
    phase: int
    name: str
    probabilities: tuple[float, ...]
    intensity: float | None
    """Mean transition intensity over the blocks, 0 to 1; None for a model without intensity."""
    quality: Quality = "ok"
    fed: Fed = "input"
    counts: Counts = Counts()
    """Of the session so far, this estimate included."""

    @property
    def confidence(self) -> float:
        """Probability of the phase."""
        return self.probabilities[self.phase]

    def as_dict(self) -> dict[str, object]:
        """For JSON; probabilities as a list."""
        return {**vars(self), "probabilities": list(self.probabilities), "counts": asdict(self.counts)}

    @classmethod
    def from_dict(cls: "type[AnyEstimate]", document: Mapping[str, object]) -> "AnyEstimate":
        """The reverse of `as_dict`; other keys of the document are ignored."""
        values = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        values["probabilities"] = tuple(values["probabilities"])  # type: ignore[arg-type]
        values["counts"] = Counts(**values.get("counts") or {})  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]


AnyEstimate = TypeVar("AnyEstimate", bound=PhaseEstimate)


@dataclass(frozen=True, kw_only=True)
class ServedEstimate(PhaseEstimate):
    """An estimate of a session on a server."""

    row: int
    """Estimates of the session before this one. After a restart without its last frames, the model starts
    behind the session, and `frame_index` is smaller."""
    frame: int
    """The client's frame that led to it."""

    @classmethod
    def of(cls, estimate: PhaseEstimate, row: int, frame: int) -> "ServedEstimate":
        """An estimate of the model with its place in the session."""
        return cls(**vars(estimate), row=row, frame=frame)

    @classmethod
    def from_dict(cls: "type[AnyEstimate]", document: Mapping[str, object]) -> "AnyEstimate":
        """As for PhaseEstimate; a server of version 0.1 sent no `frame_index`, `tick` and `counts`."""
        place = {"frame_index": document["row"], "tick": document["row"]}
        return super().from_dict({**place, **document})

    def repeats(self, recorded: "ServedEstimate") -> bool:
        """Whether this estimate, computed again, equals the one on record to the last bit.

        `frame_index`, `tick` and `counts` are not compared: records of version 0.1 do not have them."""
        return self == replace(recorded, frame_index=self.frame_index, tick=self.tick, counts=self.counts)


def to_columns(estimates: Sequence[ServedEstimate]) -> dict[str, list[object]]:
    """A list per field, a fifth of the size of one object each. Names are left out: the session has them. Of
    the counters those that are not zero are kept."""
    columns = {name: [getattr(estimate, name) for estimate in estimates] for name in DATABASE_COLUMNS}
    return {**columns, "counts": [estimate.counts.nonzero for estimate in estimates]}


def from_columns(columns: Mapping[str, object], phases: Sequence[str]) -> list[ServedEstimate]:
    """The reverse of `to_columns`; what is not a list, or not a field, is ignored."""
    names = {field.name for field in fields(ServedEstimate)}
    lists = {name: values for name, values in columns.items() if name in names and isinstance(values, list)}
    rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return [ServedEstimate.from_dict({"name": phases[row["phase"]], **row}) for row in rows]


_SQL_TYPES = {int: "integer", float: "real", float | None: "real", tuple[float, ...]: "blob"}
DATABASE_COLUMNS: dict[str, str] = {
    name: _SQL_TYPES.get(kind, "text")
    for name, kind in get_type_hints(ServedEstimate).items()
    if name != "name"
}
"""Column of a database row -> SQL type. Null, as in a column added later, is read as the default."""


def to_row(estimate: ServedEstimate) -> tuple[object, ...]:
    """Values in the order of DATABASE_COLUMNS: probabilities as little-endian doubles, counters as JSON."""
    packed = struct.pack(f"<{len(estimate.probabilities)}d", *estimate.probabilities)
    values = {**vars(estimate), "probabilities": packed, "counts": json.dumps(estimate.counts.nonzero)}
    return tuple(values[name] for name in DATABASE_COLUMNS)


def from_row(values: Sequence[object], phases: Sequence[str]) -> ServedEstimate:
    """The reverse of `to_row`."""
    found = {name: value for name, value in zip(DATABASE_COLUMNS, values, strict=True) if value is not None}
    row, packed, phase = found["row"], found["probabilities"], found["phase"]
    assert isinstance(packed, bytes) and isinstance(phase, int)
    defaults = {"intensity": None, "frame_index": row, "tick": row}  # version 0.1 stored no index and no tick
    found["probabilities"] = struct.unpack(f"<{len(packed) // 8}d", packed)
    found["counts"] = _counts(str(found.get("counts", "{}")))
    return ServedEstimate(name=phases[phase], **{**defaults, **found})  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _counts(text: str) -> Counts:
    return Counts(**json.loads(text))


def to_prediction(
    frames: Sequence[int], estimates: Sequence[PhaseEstimate], n_phases: int
) -> "VideoPrediction":
    """The prediction file of one video; `frames` numbers its rows."""
    from surgicalmamba.eval.files import VideoPrediction

    intensity = [estimate.intensity for estimate in estimates]
    return VideoPrediction(
        frame=np.array(frames, np.int64),
        time_s=np.array([estimate.time_s for estimate in estimates], np.float64),
        phase=np.array([estimate.phase for estimate in estimates], np.int64),
        probabilities=np.array([estimate.probabilities for estimate in estimates]).reshape(-1, n_phases),
        intensity=None if None in intensity else np.array(intensity, np.float64),
    )
