"""What this machine and this installation offer, as a list of findings."""

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata, util
from shutil import which
from typing import Literal

import torch

from surgicalmamba.core.rotation import regram, unit_columns
from surgicalmamba.model.surgical_mamba import VARIANTS, ModelConfig, SurgicalMamba
from surgicalmamba.version import __version__

# Optional parts: module to look for, distribution that holds its version, what it serves, how to get it.
OPTIONAL_PARTS = (
    ("tensorboard", "tensorboard", "training curves", "pip install tensorboard"),
    ("mamba_ssm", "mamba-ssm", "fused scan on CUDA", "pip install mamba-ssm (needs an NVIDIA GPU)"),
    ("triton", "triton", "kernels of mamba-ssm and torch.compile on GPUs", "comes with the CUDA build of torch"),
    ("onnxruntime", "onnxruntime", "onnx engine", "pip install 'surgicalmamba[onnx]'"),
    ("onnx", "onnx", "exporting to ONNX", "pip install 'surgicalmamba[onnx]'"),
    ("onnxscript", "onnxscript", "exporting to ONNX", "pip install 'surgicalmamba[onnx]'"),
)
OPTIONAL_PROGRAMS = (("ffmpeg", "baseline of `bench data`", "install ffmpeg with the system's package manager"),)


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` is something optional that is absent; `problem` needs attention."""

    name: str
    state: Literal["present", "missing", "problem"]
    text: str

    @property
    def mark(self) -> str:
        return {"present": "ok  ", "missing": "-   ", "problem": "FAIL"}[self.state]


def examine() -> list[Finding]:
    """Look at versions, devices, threads and optional parts."""
    findings = [
        Finding("surgicalmamba", "present", __version__),
        Finding("python", "present", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *_required(),
        *_torch(),
    ]
    return findings + [_optional(*part) for part in OPTIONAL_PARTS] + [_program(*program) for program in OPTIONAL_PROGRAMS]


def _required() -> list[Finding]:
    """What the installed package itself asks for."""
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
        return [Finding("devices", "problem", f"torch does not import ({error}); reinstall it: pip install --force-reinstall torch")]
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices = ["cpu", *(f"cuda:{i} ({name})" for i, name in enumerate(cuda))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    threads = f"{torch.get_num_threads()} torch threads on {os.cpu_count()} logical cores; set OMP_NUM_THREADS to change"
    compiler = "C++ compiler for torch.compile on CPU"
    has_compiler = any(which(name) for name in ("c++", "g++", "clang++", "cl.exe"))
    return [
        Finding("devices", "present", ", ".join(devices)),
        Finding("threads", "present", threads),
        Finding("compiler", "present", f"found a {compiler}")
        if has_compiler
        else Finding("compiler", "missing", f"no {compiler}; install g++ or clang"),
    ]


def _program(name: str, purpose: str, install: str) -> Finding:
    place = which(name)
    return Finding(name, "present", f"{purpose}: found") if place else Finding(name, "missing", f"{purpose}: not found; {install}")


def _optional(module: str, distribution: str, purpose: str, install: str) -> Finding:
    if util.find_spec(module) is None:
        return Finding(module, "missing", f"{purpose}: not installed; {install}")
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = "unknown version"
    return Finding(module, "present", f"{purpose}: {version}")


# A self-check anyone can run: does this installation compute what the paper says, in every form?


@dataclass(frozen=True)
class Check:
    """One property with what was measured and the largest value that passes."""

    name: str
    measured: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.measured <= self.limit


def checks(frames: int = 130) -> list[Callable[[], Check]]:
    """Every check, to be run one by one so that a caller can show progress."""
    forms = [partial(_step_equals_clip, variant, frames) for variant in VARIANTS]
    return [*forms, partial(_causal, frames), _norm_kept, partial(_memory, frames), _learns]


def _model(variant: str = "full") -> SurgicalMamba:
    torch.manual_seed(0)
    config = ModelConfig.preset("tiny", backbone=None, d_feature=16, clip_len=100)  # a check crosses clip and chunk boundaries
    return SurgicalMamba(config.variant(variant)).eval()


@torch.no_grad()
def _step_equals_clip(variant: str, frames: int) -> Check:
    model, features = _model(variant), torch.randn(1, frames, 16)
    whole = model.forward_features(features).logits
    state, largest = None, 0.0
    for t in range(frames):
        output = model.forward_features(features[:, t : t + 1], state)
        state = output.state
        largest = max(largest, float((output.logits[:, 0] - whole[:, t]).abs().max()))
    return Check(f"frame by frame equals clip: {variant}", largest, 1e-4)


@torch.no_grad()
def _causal(frames: int) -> Check:
    model, features = _model(), torch.randn(1, frames, 16)
    changed = features.clone()
    changed[:, frames // 2] += 1
    difference = (model.forward_features(features).logits - model.forward_features(changed).logits)[:, : frames // 2]
    return Check("no logit depends on a later frame", float(difference.abs().max()), 0.0)


def _norm_kept() -> Check:
    torch.manual_seed(0)
    state = torch.randn(1, 2, 16, 64)
    norm = state.norm()
    for _ in range(1000):
        U, V = (unit_columns(torch.randn(1, 2, 64, 16)) for _ in range(2))
        state = regram(state, U, V, 2 * torch.rand(1, 2, 16), "low-rank")
    return Check("rotations keep the state's norm over 1,000 boundaries", float((state.norm() / norm - 1).abs()), 1e-4)


@torch.no_grad()
def _memory(frames: int) -> Check:
    model = _model()
    short, long = (model.forward_features(torch.randn(1, n, 16)).state.nbytes for n in (1, frames))
    return Check("memory does not grow with the procedure, bytes", float(long - short), 0.0)


def _learns() -> Check:
    """A memory task: name the class of the first frame until the end of the clip. The loss after over the loss before."""
    model = _model().train()
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

