"""Multi-query associative recall: the task, its sizes and its settings.

A sequence lists pairs of key and value; then each key is asked for once, somewhere among random tokens.

One example with T = 16 tokens and 4 pairs of a vocabulary of 20 (keys 0 to 9, values 10 to 19):

    position   0  1  2  3  4  5  6  7 | 8  9 10 11 12 13 14 15
    token      3 17  8 12  0 19  5 10 | 8  4  3 13  5  5  0 18
               k  v  k  v  k  v  k  v | ?  .  ?  .  ?  .  ?  .
    answer                             12    17    10    19

Questions are on even positions after the pairs. Tokens between them (.) are drawn from the whole vocabulary,
the harder variant of the task. The answer is scored at the question itself. With T/4 pairs every even
position asks; with fewer, early pairs tend to be asked soon (a power law, as in the benchmark that the
protocol is based on).

A batch depends only on seed, dataset and its number, so nothing is stored, runs can stop anywhere, and all
variants see the same data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from surgicalmamba.config import Positive, Section, override
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import PathConfig, RotationConfig

IntArray = NDArray[np.int64]
POWER = 0.01
"""Exponent of the power law of distances: nearly 1/distance."""

Variant = Literal["plain", "content", "content-release", "constant", "pairs", "rotary", "content-every-frame"]
VARIANTS: dict[Variant, str] = {
    "plain": "no rotation",
    "content": "every chunk, planes and angles from content (the paper's Z)",
    "content-release": "the same from the release's start, angles about 1",
    "constant": "every chunk, one learned Z",
    "pairs": "every chunk, fixed pairs, angles from content",
    "rotary": "every frame, fixed pairs, angles from content (as in Mamba-3)",
    "content-every-frame": "every frame, planes and angles from content",
}
"""What is compared; all but the first rotate. They cover {every frame, every chunk} x {fixed pairs, planes
from content}."""


@dataclass(frozen=True)
class Cell:
    """A size of task and model: `T64-V256-N4-d32` has 64 tokens, 16 pairs, 256 words, a state of 4 and a
    width of 32."""

    length: int
    vocabulary: int
    d_state: int
    d_model: int

    @property
    def name(self) -> str:
        return f"T{self.length}-V{self.vocabulary}-N{self.d_state}-d{self.d_model}"

    @property
    def n_pairs(self) -> int:
        """Pairs of the sequences that are scored."""
        return self.length // 4

    @classmethod
    def parse(cls, name: str) -> "Cell":
        match = re.fullmatch(r"T(\d+)-V(\d+)-N(\d+)-d(\d+)", name)
        if match is None:
            raise ValueError(
                f"{name!r} is no cell; write length, vocabulary, state and width like T64-V256-N4-d32."
            )
        return cls(*(int(part) for part in match.groups()))


class MqarConfig(Section):
    """Task, model and training. Values of the paper and of Mamba-2 are marked; the others are ours."""

    cells: tuple[str, ...] = Field(
        description="Sizes, such as T256-V8192-N16-d64: tokens, vocabulary, state width, model width."
    )
    variants: tuple[Variant, ...] = Field(
        ("plain", "content"), description="Rows of every cell; the first is the one compared with."
    )
    n_layers: Positive = Field(2, description="Paper: 2.")
    d_head: Positive = Field(64, description="Head width, at most twice the model's width. Mamba-2: 64.")
    chunks: Positive = Field(4, description="Chunks of a sequence. Paper: chunks of T/4.")
    rank: Positive = Field(
        4, description="Rotation planes, at most a quarter of the state, at least 1. Not in the paper."
    )
    d_hidden: Positive = Field(8, description="Hidden width of the rotation's networks. Not in the paper.")
    embedding_std: float = Field(0.02, gt=0, description="Spread of embeddings at the start. Mamba-2: 0.02.")
    pair_shares: tuple[Positive, ...] = Field(
        (32, 16, 8, 4),
        description="T over the number of pairs, in turn by batch. Paper: 32, 16, 8, 4; the last is scored.",
    )
    rates: tuple[float, ...] = Field(
        (1e-3, 3e-3, 1e-2), description="Learning rates, the best chosen per cell and variant."
    )
    rate_seeds: Positive = Field(
        2, description="Seeds that are trained at every rate to choose it; the others at the chosen one only."
    )
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decay of matrices. Not in the paper.")
    batch_tokens: Positive = Field(2**18, description="Tokens in a batch. Mamba-2: 2^18.")
    examples: Positive | None = Field(
        2**18, description="Examples of each number of pairs, seen again and again; null: always new ones."
    )
    warmup_updates: Positive = Field(256, description="Updates over which the rate rises to its full value.")
    min_updates: Positive = Field(8192, description="Updates at the full rate before a flat loss may end it.")
    max_updates: Positive = Field(8192, description="Updates at the full rate at the most.")
    flat_window: Positive = Field(1024, description="A loss is flat when its mean over so many updates ...")
    flat_share: float = Field(
        0.01, ge=0, lt=1, description="... is not this share below that of the window before."
    )
    solved: Annotated[float, Field(gt=0, le=100)] = Field(
        99.0, description="Recall, percent, at which training ends. Benchmark: 99."
    )
    decay_share: float = Field(
        0.25, ge=0, description="Updates in which the rate falls to 0 at the end, as a share of those before."
    )
    test_examples: Positive = Field(1024, description="Examples to choose the rate, and as many to report.")
    save_every: Positive = Field(200, description="Updates between two saved states.")
    compile: bool = Field(
        True,
        description="Compile the model with torch.compile, two to three times as fast; needs a C++ compiler.",
    )

    @model_validator(mode="after")
    def _check(self) -> "MqarConfig":
        for cell in self.sizes():
            if any(cell.length % share for share in self.pair_shares) or cell.length % self.chunks:
                parts = f"{max(self.pair_shares)} and of {self.chunks} chunks"
                raise ValueError(f"cells: {cell.name}: {cell.length} is no multiple of {parts}.")
            if self.pair_shares[-1] != 4:
                raise ValueError("pair_shares must end with 4: sequences with T/4 pairs are what is scored.")
            if cell.n_pairs > cell.vocabulary // 2:
                raise ValueError(
                    f"cells: {cell.name}: a vocabulary of {cell.vocabulary} has too few keys for "
                    f"{cell.n_pairs} pairs."
                )
        if self.min_updates > self.max_updates:
            raise ValueError(
                f"min_updates={self.min_updates} is larger than max_updates={self.max_updates}; swap them."
            )
        if not self.variants or not self.cells:
            raise ValueError("cells and variants must not be empty.")
        return self

    def sizes(self) -> list[Cell]:
        """The cells as numbers."""
        return [Cell.parse(name) for name in self.cells]

    def path(self, cell: Cell, variant: Variant) -> PathConfig:
        """The SSD path of a layer; variants differ only in what turns the state."""
        rank = max(1, min(self.rank, cell.d_state // 4))
        rotations: Mapping[Variant, RotationConfig] = {
            "content": RotationConfig(rank=rank, d_hidden=self.d_hidden),
            "content-release": RotationConfig(rank=rank, d_hidden=self.d_hidden, init="release"),
            "constant": RotationConfig(rank=rank, kind="constant", init="release"),
            "pairs": RotationConfig(rank=rank, d_hidden=self.d_hidden, kind="pairs", init="release"),
            "content-every-frame": RotationConfig(rank=rank, d_hidden=self.d_hidden),
        }
        return PathConfig(
            chunk_len=1 if variant == "content-every-frame" else cell.length // self.chunks,
            d_state=cell.d_state,
            d_head=min(self.d_head, 2 * cell.d_model),
            rotation=rotations.get(variant),
            rotary=variant == "rotary",
        )

    def batch(self, cell: Cell) -> int:
        """Examples in a batch."""
        return max(1, self.batch_tokens // cell.length)


_PLATEAU = MqarConfig(
    cells=("T64-V256-N4-d32", "T128-V128-N8-d32"),
    variants=("plain", "content", "content-release", "constant", "rotary"),
    d_head=32,
    embedding_std=1.0,
    pair_shares=(4,),
    rates=(1e-2, 2e-2),
    weight_decay=0.0,
    batch_tokens=2048,
    examples=None,
    min_updates=12288,
    max_updates=24576,
)
PRESETS: dict[str, MqarConfig] = {
    "plateau": _PLATEAU,
    "paper-cell": _PLATEAU.with_(
        cells=("T256-V8192-N16-d64",),
        variants=("plain", "content"),
        d_head=64,
        batch_tokens=8192,
        rates=(1e-2,),
        test_examples=256,
    ),
    "full": MqarConfig(
        cells=tuple(
            Cell(length, 8192, n, width).name
            for length in (256, 512, 1024)
            for n in (16, 64)
            for width in (32, 64, 128)
        ),
    ),
}
"""plateau: cells for a CPU in which pairs outnumber directions, trained until the loss is flat.
paper-cell: one cell of the paper with the same recipe. full: the paper's protocol, for a GPU."""
QUICK = ["cells=[T64-V64-N4-d16]", "rates=[1e-2]", "min_updates=4", "max_updates=4", "batch_tokens=512"]
QUICK += ["test_examples=16", "compile=false"]
"""Overrides for a run of a few seconds."""


def preset_config(name: str, overrides: Sequence[str]) -> MqarConfig:
    """A preset with `key=value` strings put over it."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r} of the recall study; presets: {', '.join(PRESETS)}.")
    return MqarConfig(**override(PRESETS[name].model_dump(), overrides))


@dataclass(frozen=True)
class Batch:
    """tokens (b, T); places (b, m) of the questions in the order of their pairs; answers (b, m)."""

    tokens: IntArray
    places: IntArray
    answers: IntArray


def make_batch(
    n_examples: int, length: int, n_pairs: int, vocabulary: int, rng: np.random.Generator
) -> Batch:
    """Draw examples. Keys are the lower half of the vocabulary, values the upper; none occurs twice in an
    example's pairs."""
    half = vocabulary // 2
    n_slots = (length - 2 * n_pairs) // 2
    assert n_pairs <= min(half, n_slots), "more pairs than keys, or than places to ask"
    keys = _distinct(n_examples, half, n_pairs, rng)
    answers = half + _distinct(n_examples, half, n_pairs, rng)
    weights = np.arange(1, n_slots + 1) ** (POWER - 1)
    # The smallest of exponential variables with these rates: a draw without replacement with these weights.
    slots = np.argsort(rng.standard_exponential((n_examples, n_slots)) / weights, axis=1)[:, :n_pairs]
    places = 2 * n_pairs + 2 * slots
    tokens = rng.integers(0, vocabulary, (n_examples, length))
    tokens[:, 0 : 2 * n_pairs : 2] = keys
    tokens[:, 1 : 2 * n_pairs : 2] = answers
    np.put_along_axis(tokens, places, keys, axis=1)
    return Batch(tokens, places, answers)


def _distinct(n_rows: int, n_choices: int, n_drawn: int, rng: np.random.Generator) -> IntArray:
    """Rows of different numbers below n_choices, in random order."""
    scores = rng.random((n_rows, n_choices), dtype=np.float32)
    drawn = np.argpartition(scores, n_drawn - 1, axis=1)[:, :n_drawn]
    order = np.argsort(
        np.take_along_axis(scores, drawn, axis=1), axis=1
    )  # a partition alone is in no fair order
    return np.take_along_axis(drawn, order, axis=1)
