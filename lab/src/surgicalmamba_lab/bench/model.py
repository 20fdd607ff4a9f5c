"""`surgicalmamba bench model`: size and speed of the network on this machine, each ratio measured in one run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from surgicalmamba.core.rotation import faster_form, regram, unit_columns
from surgicalmamba.core.state import ModelState
from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba
from surgicalmamba_lab.bench.timing import Timing, machine, take_turns


@dataclass(frozen=True)
class ModelBench:
    """What `bench model` reports. Times are milliseconds; ratios are of medians taken in alternation."""

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
        """The report as text."""
        text = [f"{self.preset} preset on {self.machine}"]
        text += [f"  parameters, {name:<20} {count:>14,}" for name, count in self.parameters.items()]
        text += [f"  multiply-accumulates, {name:<10} {macs:>14,} per frame" for name, macs in self.macs_per_frame.items()]
        text += [f"  state {self.state_bytes:>42,} bytes"]
        for title, timings in (
            (f"forward, {self.clip_frames} frames", self.forward),
            (f"forward and backward, {self.clip_frames} frames", self.forward_backward),
            ("rotation of one path", self.rotation),
            ("one frame", self.frame),
        ):
            text.append(f"  {title}")
            for name, t in timings.items():
                text.append(f"    {name:<12} median {t.median_ms:>10.2f} ms   p95 {t.p95_ms:>10.2f} ms   ({t.runs} runs)")
        return [
            *text,
            f"  clip over steps: forward {self.forward_speedup:.1f} x, forward and backward {self.forward_backward_speedup:.1f} x",
            f"  forward could reach {self.forward_speedup_limit:.1f} x if a clip were nothing but matrix products, "
            f"at the {self.matrix_gflops:.0f} GFLOP/s measured here",
            f"  rotation form in use: {self.rotation_form}; boundary over ordinary frame: {self.boundary_over_ordinary:.2f}",
        ]


def bench_model(preset: str, runs: int, threads: int | None = None, quick: bool = False) -> ModelBench:
    """Measure a preset. `quick` shortens the step loop to one chunk, for tests."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = ModelConfig.preset(preset)
    model = SurgicalMamba(config).eval()
    clip_frames = config.block.slow.chunk_len if quick else config.clip_len
    features = torch.randn(1, clip_frames, config.feature_width)
    forward = take_turns({"clip": no_grad(run_clip, model, features), "steps": no_grad(run_steps, model, features)}, runs)
    both = {"clip": train_call(run_clip, model, features), "steps": train_call(run_steps, model, features)}
    backward = take_turns(both, max(1, runs // 2), warmup=0 if quick else 1)
    rotation = take_turns(rotation_calls(config), 10 * runs, warmup=3)
    frame = take_turns(frame_calls(model, features), 5 * runs, warmup=2)
    slow = config.block.slow
    macs = macs_per_frame(model)
    gflops = matrix_gflops(config, clip_frames, runs)
    floor_ms = 2 * macs["temporal"] * clip_frames / (gflops * 1e6)
    return ModelBench(
        preset=preset,
        machine={**machine(), "torch": torch.__version__, "threads": torch.get_num_threads()},
        parameters={
            "total": sum(p.numel() for p in model.parameters()),
            "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "rotation_networks": sum(p.numel() for name, p in model.named_parameters() if ".rotator." in name),
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


def run_clip(model: SurgicalMamba, features: torch.Tensor) -> torch.Tensor:
    """All frames in one call."""
    return model.forward_features(features).logits


def run_steps(model: SurgicalMamba, features: torch.Tensor) -> torch.Tensor:
    """The same frames, one call each."""
    state: ModelState | None = None
    logits = []
    for t in range(features.shape[1]):
        output = model.forward_features(features[:, t : t + 1], state)
        state = output.state
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


Run = Callable[[SurgicalMamba, torch.Tensor], torch.Tensor]


def no_grad(run: Run, model: SurgicalMamba, features: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return run(model, features)

    return call


def train_call(run: Run, model: SurgicalMamba, features: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        model.zero_grad(set_to_none=True)
        return run(model, features).square().mean().backward()

    return call


def macs_per_frame(model: SurgicalMamba) -> dict[str, int]:
    """Multiply-accumulates of one ordinary frame: matrix products and convolutions, the paper's "GFLOPs"."""
    size = model.config.backbone.image_size if model.config.backbone is not None else 0
    counts = {}
    with torch.no_grad():
        for part in ("backbone", "temporal"):
            if part == "backbone" and model.backbone is None:
                continue
            with FlopCounterMode(display=False) as counter:
                if part == "backbone":
                    model.encode(torch.zeros(1, 3, size, size))
                else:
                    model.forward_features(torch.zeros(1, 1, model.feature_width))
            counts[part] = counter.get_total_flops() // 2
    return {"total": sum(counts.values()), **counts}


def matrix_gflops(config: ModelConfig, frames: int, runs: int) -> float:
    """What the matrix library reaches on the model's largest projection: the roof over everything a clip computes."""
    d_inner = config.block.slow.expand * config.d_model
    x, weight = torch.randn(frames, d_inner), torch.randn(2 * d_inner, d_inner)
    timing = take_turns({"product": lambda: torch.nn.functional.linear(x, weight)}, 10 * runs, warmup=5)["product"]
    return 2 * frames * weight.numel() / (timing.median_ms * 1e6)


def rotation_calls(config: ModelConfig) -> dict[str, Callable[[], object]]:
    """One path's state rotated in both forms, with planes and angles given."""
    path = config.block.slow
    if path.rotation is None:
        return {}
    n_heads = path.expand * config.d_model // path.d_head
    U, V = (unit_columns(torch.randn(1, n_heads, path.d_state, path.rotation.rank)) for _ in range(2))
    theta, state = torch.rand(1, n_heads, path.rotation.rank), torch.randn(1, n_heads, path.d_head, path.d_state)
    return {
        "low-rank": lambda: regram(state, U, V, theta, "low-rank"),
        "dense": lambda: regram(state, U, V, theta, "dense"),
    }


def frame_calls(model: SurgicalMamba, features: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A frame in mid-chunk, and the last frame of a chunk, where every path of the blocks rotates."""
    chunk_len = model.config.block.slow.chunk_len
    with torch.no_grad():
        before_boundary = model.forward_features(features[:, : chunk_len - 1]).state
        middle = model.forward_features(features[:, : chunk_len // 4]).state
    frame = features[:, :1]

    def push(state: ModelState) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return model.forward_features(frame, state)

        return call

    return {"ordinary": push(middle), "boundary": push(before_boundary)}
