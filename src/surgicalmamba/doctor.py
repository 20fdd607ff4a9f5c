"""What this machine and this installation offer, as a list of findings."""

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata, util
from shutil import which
from typing import Literal

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
