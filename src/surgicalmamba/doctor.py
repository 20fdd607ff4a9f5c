"""`surgicalmamba doctor`: what machine and installation offer, and whether all forms of the model agree.

Torch may be missing or broken, so only the functions that need it import it."""

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata, util
from shutil import which
from typing import TYPE_CHECKING, Literal

from surgicalmamba.version import __version__

if TYPE_CHECKING:
    from surgicalmamba.model.surgical_mamba import SurgicalMamba

# Module to look for, distribution that holds its version, purpose, how to get it.
OPTIONAL_PARTS = (
    ("tensorboard", "tensorboard", "training curves", "pip install tensorboard"),
    ("mamba_ssm", "mamba-ssm", "fused scan on CUDA", "pip install mamba-ssm (needs an NVIDIA GPU)"),
    ("triton", "triton", "kernels of mamba-ssm and torch.compile on GPUs", "comes with torch for CUDA"),
    ("onnxruntime", "onnxruntime", "onnx engine", "pip install 'surgicalmamba[onnx]'"),
    ("onnx", "onnx", "exporting to ONNX", "pip install 'surgicalmamba[onnx]'"),
    ("onnxscript", "onnxscript", "exporting to ONNX", "pip install 'surgicalmamba[onnx]'"),
)
COMPILERS = ("c++", "g++", "clang++", "cl.exe")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` is something optional; `problem` needs attention."""

    name: str
    state: Literal["present", "missing", "problem"]
    text: str

    @property
    def mark(self) -> str:
        return {"present": "ok  ", "missing": "-   ", "problem": "FAIL"}[self.state]


def examine() -> list[Finding]:
    """Look at versions, devices, threads and optional parts."""
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return [
        Finding("surgicalmamba", "present", __version__),
        Finding("python", "present", python),
        *_required(),
        *_torch(),
        *(_optional(*part) for part in OPTIONAL_PARTS),
        _program("ffmpeg", "baseline of `bench data`", "install it with the package manager", "ffmpeg"),
    ]


def _required() -> list[Finding]:
    """The requirements of the installed package."""
    findings = []
    for requirement in metadata.requires("surgicalmamba") or []:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
        try:
            findings.append(Finding(name, "present", metadata.version(name)))
        except metadata.PackageNotFoundError:
            findings.append(Finding(name, "problem", f"not installed; run: pip install '{requirement}'"))
    return findings


def _torch() -> list[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        remedy = "reinstall it: pip install --force-reinstall torch"
        return [Finding("devices", "problem", f"torch does not import ({error}); {remedy}")]
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices = ["cpu", *(f"cuda:{i} ({name})" for i, name in enumerate(cuda))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    threads = f"{torch.get_num_threads()} torch threads on {os.cpu_count()} logical cores"
    return [
        Finding("devices", "present", ", ".join(devices)),
        Finding("threads", "present", f"{threads}; set OMP_NUM_THREADS to change"),
        _program("compiler", "torch.compile on CPU", "install g++ or clang", *COMPILERS),
    ]


def _program(name: str, purpose: str, install: str, *commands: str) -> Finding:
    if any(which(command) for command in commands):
        return Finding(name, "present", f"{purpose}: found")
    return Finding(name, "missing", f"{purpose}: not found; {install}")


def _optional(module: str, distribution: str, purpose: str, install: str) -> Finding:
    if util.find_spec(module) is None:
        return Finding(module, "missing", f"{purpose}: not installed; {install}")
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = "unknown version"
    return Finding(module, "present", f"{purpose}: {version}")


FRAMES = 130
"""Length of the sequences of the self-check."""


@dataclass(frozen=True)
class Check:
    """One property with the measured value and the largest value that passes."""

    name: str
    measured: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.measured <= self.limit


def self_checks() -> list[Callable[[], Check]]:
    """Every check of the model, to be run one by one so that a caller can show progress."""
    from surgicalmamba.model.surgical_mamba import VARIANTS

    return [*(partial(_step_equals_clip, name) for name in VARIANTS), _causal, _norm_kept, _memory, _learns]


def _model(variant: str = "full") -> "SurgicalMamba":
    """A small model with fixed weights, without gradients."""
    import torch

    from surgicalmamba.model.surgical_mamba import ModelConfig, SurgicalMamba

    torch.manual_seed(0)
    config = ModelConfig.preset("tiny", backbone=None, d_feature=16, clip_len=100)  # less than FRAMES
    return SurgicalMamba(config.variant(variant)).eval().requires_grad_(False)


def _step_equals_clip(variant: str) -> Check:
    import torch

    model, features = _model(variant), torch.randn(1, FRAMES, 16)
    whole = model.forward_features(features).logits
    state, largest = None, 0.0
    for t in range(FRAMES):
        output = model.forward_features(features[:, t : t + 1], state)
        state = output.state
        largest = max(largest, float((output.logits[:, 0] - whole[:, t]).abs().max()))
    return Check(f"frame by frame equals clip: {variant}", largest, 1e-4)


def _causal() -> Check:
    import torch

    model, features, half = _model(), torch.randn(1, FRAMES, 16), FRAMES // 2
    changed = features.clone()
    changed[:, half] += 1
    before, after = (model.forward_features(x).logits[:, :half] for x in (features, changed))
    return Check("no logit depends on a later frame", float((before - after).abs().max()), 0.0)


def _norm_kept() -> Check:
    import torch

    from surgicalmamba.core.rotation import regram, unit_columns

    torch.manual_seed(0)
    state = torch.randn(1, 2, 16, 64)
    norm = state.norm()
    for _ in range(1000):
        U, V = (unit_columns(torch.randn(1, 2, 64, 16)) for _ in range(2))
        state = regram(state, U, V, 2 * torch.rand(1, 2, 16), "low-rank")
    change = float((state.norm() / norm - 1).abs())
    return Check("rotations keep the state's norm over 1,000 boundaries", change, 1e-4)


def _memory() -> Check:
    import torch

    model = _model()
    short, long = (model.forward_features(torch.randn(1, n, 16)).state.nbytes for n in (1, FRAMES))
    return Check("memory does not grow with the procedure, bytes", float(long - short), 0.0)


def _learns() -> Check:
    """A memory task: the class of the first frame, until the end of the clip. Loss after over loss before."""
    import torch

    model = _model().train().requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (16,), generator=generator)
    features = 0.3 * torch.randn(16, 48, 16, generator=generator)
    features[torch.arange(16), 0, labels] += 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(20):
        logits = model.forward_features(features).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat_interleave(48))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Check("training lowers the loss", losses[-1] / losses[0], 0.5)
