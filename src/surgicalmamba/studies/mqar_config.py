"""Settings of the recall study: the protocol of the paper, one that a CPU can follow, and the cells of a study."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from surgicalmamba.config import PathConfig, Positive, RotationConfig, Section, override
from surgicalmamba.errors import ConfigError

Variant = Literal["plain", "rotated"]
VARIANTS: tuple[Variant, ...] = ("plain", "rotated")
PAIR_SHARES = (32, 16, 8, 4)
"""The curriculum: T/32, T/16, T/8 and T/4 pairs, batch by batch in turn. The last is what is scored."""


class MqarConfig(Section):
    """Task, model and training. The defaults are the paper's where it speaks; what Mamba-2 adds to the protocol is named so."""

    lengths: tuple[Positive, ...] = Field((256, 512, 1024), description="Sequence lengths T. Paper: 256, 512, 1024.")
    states: tuple[Positive, ...] = Field((16, 64), description="State widths N. Paper: 16, 64.")
    widths: tuple[Positive, ...] = Field((32, 64, 128), description="Model widths. Paper: 32, 64, 128.")
    vocabulary: Positive = Field(8192, description="Tokens. Paper: 8192.")
    n_layers: Positive = Field(2, description="Paper: 2.")
    d_head: Positive = Field(64, description="Head width, at most the inner width of twice the model's. Mamba-2: 64.")
    chunks: Positive = Field(4, description="Chunks of a sequence. Paper: chunks of T/4.")
    rank: Positive = Field(4, description="Rotation planes. Not in the paper; with d_hidden it keeps the added weights at a few percent.")
    d_hidden: Positive = Field(8, description="Hidden width of the rotation's networks. Not in the paper.")
    embedding_std: float = Field(0.02, gt=0, description="Spread of the embeddings at the start. Mamba-2: 0.02.")
    theta_init: float = Field(0.01, gt=0, description="Mean angle at the start, radians, as in the surgical model.")
    rates: tuple[float, ...] = Field((1e-3, 3e-3, 1e-2), description="Learning rates, the best chosen per cell and variant.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's decay of matrices. Not in the paper.")
    batch_tokens: Positive = Field(2**18, description="Tokens in a batch. Mamba-2: 2^18.")
    examples: Positive = Field(2**18, description="Examples of each of the four datasets. Mamba-2: 2^18.")
    cycles: Positive = Field(8, description="Passes over the four datasets. Mamba-2: 8.")
    test_examples: Positive = Field(2048, description="Examples to choose the rate by, and as many others to report.")
    save_every: Positive = Field(200, description="Updates between two saved states.")

    @model_validator(mode="after")
    def _check(self) -> "MqarConfig":
        for length in self.lengths:
            if length % PAIR_SHARES[0] or length % self.chunks:
                raise ValueError(f"lengths: {length} is no multiple of {PAIR_SHARES[0]} and of {self.chunks} chunks.")
            if length // PAIR_SHARES[-1] > self.vocabulary // 2:
                raise ValueError(f"vocabulary={self.vocabulary} has too few keys for {length // PAIR_SHARES[-1]} pairs.")
        return self

    def cells(self) -> "Iterator[Cell]":
        """Every size there is to compare the two variants at."""
        for length in self.lengths:
            for d_state in self.states:
                for d_model in self.widths:
                    yield Cell(length, d_state, d_model)

    def path(self, cell: "Cell", variant: Variant) -> PathConfig:
        """The SSD path of a layer; both variants differ in the rotation only."""
        rotation = None if variant == "plain" else RotationConfig(rank=self.rank, d_hidden=self.d_hidden, theta_init=self.theta_init)
        return PathConfig(
            chunk_len=cell.length // self.chunks, d_state=cell.d_state, d_head=min(self.d_head, 2 * cell.d_model), rotation=rotation
        )

    def batch(self, cell: "Cell") -> int:
        """Examples in a batch."""
        return max(1, self.batch_tokens // cell.length)

    def updates(self, cell: "Cell") -> int:
        """Updates of a run."""
        return self.cycles * len(PAIR_SHARES) * max(1, self.examples // self.batch(cell))


@dataclass(frozen=True)
class Cell:
    """A size of the task and of the model."""

    length: int
    d_state: int
    d_model: int

    @property
    def name(self) -> str:
        return f"T{self.length}-N{self.d_state}-d{self.d_model}"


PRESETS: dict[str, MqarConfig] = {
    "full": MqarConfig(),
    "scaled": MqarConfig(
        lengths=(32, 64),
        states=(8, 16),
        widths=(32,),
        vocabulary=64,
        d_head=32,
        embedding_std=1.0,
        rates=(1e-2, 2e-2),
        weight_decay=0.0,
        batch_tokens=2048,
        examples=2**13,
        cycles=4,
        test_examples=1024,
    ),
}
"""full is the paper's protocol, made for a GPU; scaled is for two cores, where recall is learned in a few thousand small updates only from
embeddings as large as what the layers add to them, without weight decay, at high rates and with a small vocabulary."""


def preset_config(name: str, overrides: Sequence[str]) -> MqarConfig:
    """A preset with `key=value` strings put over it."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r} of the recall study; presets: {', '.join(PRESETS)}.")
    return MqarConfig(**override(PRESETS[name].model_dump(), overrides))
