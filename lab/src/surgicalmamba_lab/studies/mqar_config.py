"""Settings of the recall study: its cells and variants, the protocol of the paper, and one that reaches its plateau on a CPU."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from surgicalmamba.config import Positive, Section, override
from surgicalmamba.errors import ConfigError
from surgicalmamba.model.surgical_mamba import PathConfig, RotationConfig

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
"""What is compared; all but the first rotate. Each of {every frame, every chunk} x {fixed pairs, planes from content} is here."""


@dataclass(frozen=True)
class Cell:
    """A size of the task and of the model: `T64-V256-N4-d32` has 64 tokens, 16 pairs, 256 words, a state of 4 and a width of 32."""

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
            raise ValueError(f"{name!r} is no cell; write length, vocabulary, state and width like T64-V256-N4-d32.")
        return cls(*(int(part) for part in match.groups()))


class MqarConfig(Section):
    """Task, model and training. What the paper or the setting of Mamba-2 says is named so; the rest is ours."""

    cells: tuple[str, ...] = Field(description="Sizes, such as T256-V8192-N16-d64: tokens, vocabulary, state width, model width.")
    variants: tuple[Variant, ...] = Field(("plain", "content"), description="Rows of every cell; the first is the one compared with.")
    n_layers: Positive = Field(2, description="Paper: 2.")
    d_head: Positive = Field(64, description="Head width, at most the inner width of twice the model's. Mamba-2: 64.")
    chunks: Positive = Field(4, description="Chunks of a sequence. Paper: chunks of T/4.")
    rank: Positive = Field(4, description="Rotation planes, at most a quarter of the state, at least 1. Not in the paper.")
    d_hidden: Positive = Field(8, description="Hidden width of the rotation's networks. Not in the paper.")
    embedding_std: float = Field(0.02, gt=0, description="Spread of the embeddings at the start. Mamba-2: 0.02.")
    pair_shares: tuple[Positive, ...] = Field(
        (32, 16, 8, 4), description="T over the number of pairs, batch by batch in turn. Paper: 32, 16, 8, 4; the last is what is scored."
    )
    rates: tuple[float, ...] = Field((1e-3, 3e-3, 1e-2), description="Learning rates, the best chosen per cell and variant.")
    rate_seeds: Positive = Field(2, description="Seeds that are trained at every rate to choose it; the others at the chosen one only.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decay of matrices. Not in the paper.")
    batch_tokens: Positive = Field(2**18, description="Tokens in a batch. Mamba-2: 2^18.")
    examples: Positive | None = Field(2**18, description="Examples of each number of pairs, seen again and again; null: always new ones.")
    warmup_updates: Positive = Field(256, description="Updates over which the rate rises to its full value.")
    min_updates: Positive = Field(8192, description="Updates at the full rate before a flat loss may end it.")
    max_updates: Positive = Field(8192, description="Updates at the full rate at the most.")
    flat_window: Positive = Field(1024, description="A loss is flat when its mean over so many updates ...")
    flat_share: float = Field(0.01, ge=0, lt=1, description="... is not lower by this share than over as many before.")
    solved: Annotated[float, Field(gt=0, le=100)] = Field(99.0, description="Recall, percent, at which training ends. Benchmark: 99.")
    decay_share: float = Field(0.25, ge=0, description="Updates in which the rate falls to 0 at the end, as a share of those before.")
    test_examples: Positive = Field(1024, description="Examples to choose the rate by, and as many others to report.")
    save_every: Positive = Field(200, description="Updates between two saved states.")
    compile: bool = Field(True, description="Compile the model with torch.compile, two to three times as fast; needs a C++ compiler.")

    @model_validator(mode="after")
    def _check(self) -> "MqarConfig":
        for cell in self.sizes():
            if any(cell.length % share for share in self.pair_shares) or cell.length % self.chunks:
                parts = f"{max(self.pair_shares)} and of {self.chunks} chunks"
                raise ValueError(f"cells: {cell.name}: {cell.length} is no multiple of {parts}.")
            if self.pair_shares[-1] != 4:
                raise ValueError("pair_shares must end with 4: sequences with T/4 pairs are what is scored.")
            if cell.n_pairs > cell.vocabulary // 2:
                raise ValueError(f"cells: {cell.name}: a vocabulary of {cell.vocabulary} has too few keys for {cell.n_pairs} pairs.")
        if self.min_updates > self.max_updates:
            raise ValueError(f"min_updates={self.min_updates} is larger than max_updates={self.max_updates}; swap them.")
        if not self.variants or not self.cells:
            raise ValueError("cells and variants must not be empty.")
        return self

    def sizes(self) -> list[Cell]:
        """The cells, read."""
        return [Cell.parse(name) for name in self.cells]

    def path(self, cell: Cell, variant: Variant) -> PathConfig:
        """The SSD path of a layer; variants differ in what turns the state only."""
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
        cells=("T256-V8192-N16-d64",), variants=("plain", "content"), d_head=64, batch_tokens=8192, rates=(1e-2,), test_examples=256
    ),
    "full": MqarConfig(
        cells=tuple(Cell(length, 8192, n, width).name for length in (256, 512, 1024) for n in (16, 64) for width in (32, 64, 128)),
    ),
}
"""plateau: cells for a CPU in which pairs outnumber directions, trained until the loss is flat. paper-cell: one cell of the paper's own
size by the same recipe. full: the paper's protocol, made for a GPU."""


def preset_config(name: str, overrides: Sequence[str]) -> MqarConfig:
    """A preset with `key=value` strings put over it."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r} of the recall study; presets: {', '.join(PRESETS)}.")
    return MqarConfig(**override(PRESETS[name].model_dump(), overrides))
