"""What this machine and this installation offer, as a list of findings. Torch may be missing or broken."""

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata, util
from shutil import which
from typing import Literal

from surgicalmamba.version import __version__

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
