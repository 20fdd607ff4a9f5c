"""The `compiled` engine: the model's pieces through torch.compile, with fixed shapes for a single stream.

On CUDA both the ordinary frame and the end of a chunk are captured as CUDA graphs, so that no frame runs
eagerly. That branch has not been run: it was written on a machine without a GPU. The parity check at start
guards it."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import util
from shutil import which
from typing import Any

import torch
from torch import Tensor, nn

from surgicalmamba.core.rotation import solve_by_blocks
from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.engines.pieces import ClosePiece, EncodePiece, PieceEngine, StepPiece
from surgicalmamba.errors import EngineError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.surgical_mamba import SurgicalMamba

VERSIONS = 64
"""Compiled forms torch may keep per piece of source, which all groups and models of a process share."""
COMPILERS = ("c++", "g++", "clang++", "cl.exe")


def compiler_problem(device: torch.device) -> str:
    """Why torch.compile cannot work on a device; empty when it can."""
    if device.type == "cuda":
        has_triton = util.find_spec("triton") is not None
        return "" if has_triton else "triton is not installed; it comes with the CUDA build of torch"
    named = os.environ.get("CXX")
    if any(which(name) for name in ([named] if named else COMPILERS)):
        return ""
    compiler = (
        f"the C++ compiler that CXX names, {named}," if named else f"a C++ compiler ({', '.join(COMPILERS)})"
    )
    return f"{compiler} is not on the path; install g++ or clang, or use the onnx engine"


class CompiledEngine(PieceEngine):
    """Compiles a piece on first use: once for one lane with fixed sizes, once for any number of lanes."""

    def __init__(self, model: SurgicalMamba) -> None:
        device = model.head.classifier.weight.device
        if problem := compiler_problem(device):
            raise EngineError(f"the compiled engine cannot run here: {problem}.")
        super().__init__(model.config)
        self._model, self._device = model.eval(), device
        # a captured graph cannot wait for LAPACK's status
        solve = solve_by_blocks if device.type == "cuda" else torch.linalg.solve
        self._run_step = _Compiled(StepPiece(model), device)
        self._run_encode = None if model.backbone is None else _Compiled(EncodePiece(model), device)
        self._run_close = {group: _Compiled(ClosePiece(model, group, solve), device) for group in self._grids}

    @property
    def name(self) -> str:
        return "compiled"

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._model)

    def initial_state(self, n_lanes: int) -> ModelState:
        return self._model.initial_state(n_lanes)

    def _encode(self, frames: Tensor) -> Tensor:
        assert self._run_encode is not None
        return self._run_encode(len(frames), frames.to(self._device))[0]

    def _step(self, features: Tensor, state: list[Tensor]) -> list[Tensor]:
        return self._run_step(len(features), features.to(self._device), state)

    def _close(self, group: Group, ssm: list[Tensor], chunk_sum: list[Tensor]) -> list[Tensor]:
        return self._run_close[group](len(ssm[0]), ssm, chunk_sum)


class _Compiled:
    """One piece, compiled on first use with its weights folded in (freezing)."""

    def __init__(self, piece: nn.Module, device: torch.device) -> None:
        self._captures = device.type == "cuda"
        mode = "reduce-overhead" if self._captures else None
        single: Callable[..., Any] = torch.compile(piece.eval(), dynamic=False, fullgraph=True, mode=mode)
        several: Callable[..., Any] = torch.compile(piece.eval(), dynamic=True, fullgraph=True)
        self._single, self._several = single, several

    def __call__(self, n_lanes: int, *inputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        run = self._single if n_lanes == 1 else self._several
        with torch.no_grad(), inductor.patch(freezing=True), dynamo.patch(cache_size_limit=VERSIONS):
            if self._captures:
                torch.compiler.cudagraph_mark_step_begin()
            try:
                result = run(*inputs)
            except Exception as error:  # tracer, code generator and C++ compiler raise unrelated classes
                reason = " ".join(str(error).split())[:300]
                advice = "use the eager or onnx engine"
                raise EngineError(f"torch.compile failed on this machine ({reason}); {advice}.") from None
        outputs = [result] if isinstance(result, Tensor) else list(result)
        return (
            [output.clone() for output in outputs] if self._captures else outputs
        )  # a replay overwrites its outputs
