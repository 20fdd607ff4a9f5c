"""`surgicalmamba bench model` and `bench rotation`: size and speed of the network, and the two equal forms
of the state rotation over sizes. Each ratio is measured in one run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from surgicalmamba.core.rotation import Form, faster_form, regram, unit_columns
from surgicalmamba.core.state import ModelState
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.timing import Report, Timing, machine, take_turns

Calls = dict[str, Callable[[], object]]
Run = Callable[[SurgicalMamba, Tensor], Tensor]

SIZES = tuple((d_state, d_state // share) for d_state in (16, 32, 64, 128) for share in (16, 8, 4, 2))
"""(d_state, rank) pairs up to 2 rank = d_state, where the two forms solve equally large systems."""
FORMS: tuple[Form, ...] = ("low-rank", "dense")


@dataclass(frozen=True)
class ModelBench(Report):
    """What `bench model` reports. Ratios are of medians taken in alternation."""

    preset: str
    machine: dict[str, object]
    parameters: dict[str, int]
    macs_per_frame: dict[str, int]
    state_bytes: int
    clip_frames: int
    forward: dict[str, Timing]
    forward_speedup: float
    matrix_gflops: float
    forward_speedup_limit: float
    forward_backward: dict[str, Timing]
    forward_backward_speedup: float
    rotation: dict[str, Timing]
    rotation_form: str
    frame: dict[str, Timing]
    boundary_over_ordinary: float

    def lines(self) -> list[str]:
        text = [f"{self.preset} preset on {self.machine}"]
        text += [f"  parameters, {name:<20} {count:>14,}" for name, count in self.parameters.items()]
        text += [
            f"  multiply-accumulates, {name:<10} {macs:>14,} a frame"
            for name, macs in self.macs_per_frame.items()
        ]
        text += [f"  state {self.state_bytes:>42,} bytes"]
        for title, timings in (
            (f"forward, {self.clip_frames} frames", self.forward),
            (f"forward and backward, {self.clip_frames} frames", self.forward_backward),
            ("rotation of one path", self.rotation),
            ("one frame", self.frame),
        ):
            text.append(f"  {title}")
            for name, t in timings.items():
                ms = f"median {t.median_ms:>10.2f} ms   p95 {t.p95_ms:>10.2f} ms"
                text.append(f"    {name:<12} {ms}   ({t.runs} runs)")
        forward, both = self.forward_speedup, self.forward_backward_speedup
        boundary = f"boundary over ordinary frame: {self.boundary_over_ordinary:.2f}"
        return [
            *text,
            f"  clip over steps: forward {forward:.1f} x, forward and backward {both:.1f} x",
            f"  forward could reach {self.forward_speedup_limit:.1f} x if a clip were nothing but matrix "
            "products, "
            f"at the {self.matrix_gflops:.0f} GFLOP/s measured here",
            f"  rotation form in use: {self.rotation_form}; {boundary}",
        ]


def bench_model(preset: str, runs: int, threads: int | None = None, quick: bool = False) -> ModelBench:
    """Measure a preset. `quick` shortens the step loop to one chunk, for tests."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = ModelConfig.preset(preset)
    model = SurgicalMamba(config).eval()
    slow = config.block.slow
    clip_frames = slow.chunk_len if quick else config.clip_len
    features = torch.randn(1, clip_frames, config.feature_width)
    ways: dict[str, Run] = {"clip": run_clip, "steps": run_steps}
    forward = take_turns({k: _without_grad(partial(run, model, features)) for k, run in ways.items()}, runs)
    both = {name: train_call(run, model, features) for name, run in ways.items()}
    backward = take_turns(both, max(1, runs // 2), warmup=0 if quick else 1)
    frame = take_turns(frame_calls(model, features), 5 * runs, warmup=2)
    macs = macs_per_frame(model)
    gflops = matrix_gflops(config, clip_frames, runs)
    floor_ms = 2 * macs["temporal"] * clip_frames / (gflops * 1e6)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    rotation = {}
    if slow.rotation is not None:
        n_heads = slow.expand * config.d_model // slow.d_head
        calls = rotation_calls(n_heads, slow.d_head, slow.d_state, slow.rotation.rank, "cpu")
        rotation = take_turns(calls, 10 * runs, warmup=3)
    return ModelBench(
        preset=preset,
        machine={**machine(), "torch": torch.__version__, "threads": torch.get_num_threads()},
        parameters={
            "total": sum(sizes.values()),
            "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "rotation_networks": sum(size for name, size in sizes.items() if ".rotator." in name),
        },
        macs_per_frame=macs,
        state_bytes=model.initial_state(1).nbytes,
        clip_frames=clip_frames,
        forward=forward,
        forward_speedup=forward["steps"].median_ms / forward["clip"].median_ms,
        matrix_gflops=gflops,
        forward_speedup_limit=forward["steps"].median_ms / floor_ms,
        forward_backward=backward,
        forward_backward_speedup=backward["steps"].median_ms / backward["clip"].median_ms,
        rotation=rotation,
        rotation_form="none" if slow.rotation is None else faster_form(slow.d_state, slow.rotation.rank),
        frame=frame,
        boundary_over_ordinary=frame["boundary"].median_ms / frame["ordinary"].median_ms,
    )


def run_clip(model: SurgicalMamba, features: Tensor) -> Tensor:
    """All frames in one call."""
    return model.forward_features(features).logits


def run_steps(model: SurgicalMamba, features: Tensor) -> Tensor:
    """The same frames, one call each."""
    state: ModelState | None = None
    logits = []
    for frame in features.split(1, dim=1):
        output = model.forward_features(frame, state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _without_grad(run: Callable[[], object]) -> Callable[[], object]:
    return torch.no_grad()(run)


def train_call(run: Run, model: SurgicalMamba, features: Tensor) -> Callable[[], object]:
    def call() -> None:
        model.zero_grad(set_to_none=True)
        run(model, features).square().mean().backward()

    return call


def frame_calls(model: SurgicalMamba, features: Tensor) -> Calls:
    """A frame in mid-chunk, and the last frame of a chunk, where every path of the blocks rotates."""
    chunk_len = model.config.block.slow.chunk_len
    with torch.no_grad():
        before = model.forward_features(features[:, : chunk_len - 1]).state
        middle = model.forward_features(features[:, : chunk_len // 4]).state
    frame = features[:, :1]
    return {
        "ordinary": _without_grad(lambda: model.forward_features(frame, middle)),
        "boundary": _without_grad(lambda: model.forward_features(frame, before)),
    }


def macs_per_frame(model: SurgicalMamba) -> dict[str, int]:
    """Multiply-accumulates of one ordinary frame: matrix products and convolutions, the paper's "GFLOPs"."""
    calls: Calls = {"temporal": lambda: model.forward_features(torch.zeros(1, 1, model.feature_width))}
    if model.config.backbone is not None:
        size = model.config.backbone.image_size
        calls = {"backbone": lambda: model.encode(torch.zeros(1, 3, size, size)), **calls}
    counts = {}
    for part, call in calls.items():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call()
        counts[part] = counter.get_total_flops() // 2
    return {"total": sum(counts.values()), **counts}


def matrix_gflops(config: ModelConfig, frames: int, runs: int) -> float:
    """What the matrix library reaches on the model's largest projection: an upper bound for everything in
    a clip."""
    d_inner = config.block.slow.expand * config.d_model
    x, weight = torch.randn(frames, d_inner), torch.randn(2 * d_inner, d_inner)
    timing = take_turns({"product": lambda: torch.nn.functional.linear(x, weight)}, 10 * runs, warmup=5)[
        "product"
    ]
    return 2 * frames * weight.numel() / (timing.median_ms * 1e6)


def rotation_calls(n_heads: int, d_head: int, d_state: int, rank: int, device: str) -> Calls:
    """The state of one path rotated in both forms, with random planes and angles."""
    U, V = (unit_columns(torch.randn(1, n_heads, d_state, rank, device=device)) for _ in range(2))
    theta = torch.rand(1, n_heads, rank, device=device)
    state = torch.randn(1, n_heads, d_head, d_state, device=device)

    def rotate(form: Form) -> Callable[[], object]:
        return lambda: float(
            regram(state, U, V, theta, form).flatten()[0]
        )  # reading a value waits for the device

    return {form: rotate(form) for form in FORMS}


@dataclass(frozen=True)
class RotationBench:
    """Both forms at one size, for 24 heads of width 64 (the paper's model). `chosen` is what `form: auto`
    takes."""

    d_state: int
    rank: int
    device: str
    low_rank: Timing
    dense: Timing
    dense_over_low_rank: float
    chosen: Form
    measured_faster: Form


def bench_rotation(device: str, runs: int, threads: int | None = None) -> list[RotationBench]:
    """Time both forms at every size."""
    if threads is not None:
        torch.set_num_threads(threads)
    results = []
    for d_state, rank in SIZES:
        timings = take_turns(rotation_calls(24, 64, d_state, rank, device), runs, warmup=3)
        low_rank, dense = (timings[form] for form in FORMS)
        ratio = dense.median_ms / low_rank.median_ms
        faster: Form = "low-rank" if ratio > 1 else "dense"
        chosen = faster_form(d_state, rank)
        results.append(RotationBench(d_state, rank, device, low_rank, dense, ratio, chosen, faster))
    return results


def rotation_lines(results: list[RotationBench]) -> list[str]:
    """The sweep as a table."""
    text = ["state  rank   low-rank ms      dense ms   dense/low-rank  auto takes"]
    for r in results:
        times = f"{r.low_rank.median_ms:>13.3f} {r.dense.median_ms:>13.3f} {r.dense_over_low_rank:>16.2f}"
        note = "" if r.chosen == r.measured_faster else "  (the other was faster here: set rotation.form)"
        text.append(f"{r.d_state:>5} {r.rank:>5} {times}  {r.chosen}{note}")
    return text
