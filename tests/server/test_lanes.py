"""A stream's numbers do not depend on its neighbours, to the last bit."""

import torch

from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.live.session import SessionPool
from surgicalmamba.server.rooms import FixedLanes


def run(engine, streams, offsets):
    """Logits of each stream, when stream i joins at tick offsets[i]."""
    states = {i: engine.initial_state(1) for i in range(len(streams))}
    outputs = {i: [] for i in range(len(streams))}
    for tick in range(max(len(s) + o for s, o in zip(streams, offsets, strict=True))):
        here = [i for i, s in enumerate(streams) if 0 <= tick - offsets[i] < len(s)]
        features = torch.stack([streams[i][tick - offsets[i]] for i in here])
        state = states[here[0]] if len(here) == 1 else type(states[here[0]]).stack([states[i] for i in here])
        output = engine.advance(features, state)
        for lane, i in enumerate(here):
            outputs[i].append(output.logits[lane])
            states[i] = output.state.select([lane])
    return [torch.stack(values) for values in outputs.values()], states


def test_alone_or_among_neighbours_at_any_offset_the_bits_are_the_same(model):
    engine = FixedLanes(EagerEngine(model), 4)
    generator = torch.Generator().manual_seed(1)
    streams = [torch.randn(45, model.feature_width, generator=generator) for _ in range(6)]
    together, states = run(engine, streams, offsets=[0, 3, 3, 8, 17, 40])
    for i, stream in enumerate(streams):
        [alone], end = run(engine, [stream], offsets=[0])
        assert torch.equal(alone, together[i])
        assert all(torch.equal(a, b) for a, b in zip(end[0].tensors(), states[i].tensors(), strict=True))


def test_the_numbers_are_those_of_the_plain_engine(model):
    stream = torch.randn(40, model.feature_width, generator=torch.Generator().manual_seed(2))
    [fixed], _ = run(FixedLanes(EagerEngine(model), 8), [stream], [0])
    [plain], _ = run(EagerEngine(model), [stream], [0])
    assert torch.allclose(fixed, plain, atol=1e-5)


def test_pictures_are_encoded_the_same_in_any_company(model):
    engine = FixedLanes(EagerEngine(model), 4)
    frames = torch.randint(
        0, 255, (5, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    together = engine.encode(frames)
    assert all(torch.equal(engine.encode(frames[i : i + 1])[0], together[i]) for i in range(5))


def test_a_dropped_picture_counts_as_late_in_the_pool(model):
    pool = SessionPool(EagerEngine(model), capacity=1)
    pool.open("a", fps=1)
    picture = torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8).numpy()
    pool.push("a", picture, 0.0)
    assert pool.is_busy("a")
    pool.tick()
    assert not pool.is_busy("a")
    pool.push_late("a", 1.0)
    pool.push("a", picture // 2, 2.0)
    estimate = pool.tick().estimates["a"]
    assert (estimate.frame_index, estimate.tick, estimate.counts.late, estimate.counts.missing) == (
        1,
        2,
        1,
        0,
    )
