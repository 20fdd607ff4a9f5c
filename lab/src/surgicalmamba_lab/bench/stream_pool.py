"""How many streams of one frame per second an engine holds: a round of one frame of every stream must end within a second."""

import time
from dataclasses import dataclass

import torch

from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.parity import model_config
from surgicalmamba_lab.bench.timing import summarise

SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64)
LIMIT_MS = 1000.0


@dataclass(frozen=True)
class PoolRow:
    """Rounds of a pool of one size. `chunk_ends_ms` is a round in which every stream ends a chunk, the worst there is."""

    streams: int
    median_ms: float
    p95_ms: float
    chunk_ends_ms: float
    holds: bool


def measure_pool(engine: Engine, rounds: int) -> list[PoolRow]:
    """Rounds at growing sizes, up to the first that misses the limit at the 95th percentile."""
    rows: list[PoolRow] = []
    for n_streams in SIZES:
        rows.append(_rounds(engine, n_streams, rounds))
        if not rows[-1].holds:
            break
    return rows


def largest_pool(rows: list[PoolRow]) -> int:
    """The largest size that holds, all smaller ones holding too."""
    return max((row.streams for row in rows if row.holds), default=0)


def _rounds(engine: Engine, n_streams: int, rounds: int) -> PoolRow:
    """Streams spread evenly over a chunk, as streams that began at their own times are."""
    config = model_config(engine)
    assert config.backbone is not None
    size, chunk_len = config.backbone.image_size, config.block.slow.chunk_len
    pictures = torch.randint(0, 256, (n_streams, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    state = engine.initial_state(n_streams).at([lane * chunk_len // n_streams for lane in range(n_streams)])
    for ending in (1, n_streams):  # an engine that compiles for each shape does so here
        engine.advance(engine.encode(pictures), state.at([chunk_len - 1] * ending + [0] * (n_streams - ending)))
    seconds = []
    for turn in range(1 + rounds):
        start = time.perf_counter()
        state = engine.advance(engine.encode(pictures), state).state
        if turn:
            seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    engine.advance(engine.encode(pictures), state.at([chunk_len - 1] * n_streams))
    worst = 1e3 * (time.perf_counter() - start)
    timing = summarise(seconds)
    return PoolRow(n_streams, timing.median_ms, timing.p95_ms, worst, timing.p95_ms < LIMIT_MS)
