"""The `compiled` engine: the model's pieces through torch.compile, with fixed shapes for a single stream.

On CUDA both the ordinary frame and the end of a chunk are captured as CUDA graphs, so that no frame runs eagerly. That branch has
not been run: it was written on a machine without a GPU. The parity check at start guards it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import util
from shutil import which
from typing import Any

import torch
from torch import Tensor, nn

from surgicalmamba.core.rotation import solve_by_blocks
from surgicalmamba.core.state import Group, ModelState, PathState
from surgicalmamba.engines.pieces import CapturedEngine, ClosePiece, EncodePiece, StepPiece
from surgicalmamba.errors import EngineError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import SurgicalMamba

VERSIONS = 64
"""Compiled forms torch may keep per piece of source. All groups and all models of a process share the source of a piece."""
COMPILERS = ("c++", "g++", "clang++", "cl.exe")


def compiler_problem(device: torch.device) -> str:
    """Why torch.compile cannot work on a device; empty when it can."""
    if device.type == "cuda":
        return "" if util.find_spec("triton") is not None else "triton is not installed; it comes with the CUDA build of torch"
    named = os.environ.get("CXX")
    if any(which(name) for name in ([named] if named else COMPILERS)):
        return ""
    wanted = f"the C++ compiler that CXX names, {named}," if named else f"a C++ compiler ({', '.join(COMPILERS)})"
    return f"{wanted} is not on the path; install g++ or clang, or use the onnx engine"


class CompiledEngine(CapturedEngine):
    """Compiles a piece when it is first used: once for one lane with every size fixed, once for any other number of lanes."""

    def __init__(self, model: SurgicalMamba) -> None:
        device = model.head.classifier.weight.device
        problem = compiler_problem(device)
        if problem:
            raise EngineError(f"the compiled engine cannot run here: {problem}.")
        super().__init__(model.config)
        self._model, self._device = model.eval(), device
        solve = solve_by_blocks if device.type == "cuda" else torch.linalg.solve  # a captured graph cannot wait for LAPACK's verdict
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
        (features,) = self._run_encode(len(frames), frames.to(self._device))
        return features

    def _step(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        logits, *rest = self._run_step(state.n_lanes, features.to(self._device), state.tensors())
        intensity = rest.pop(0) if self.config.block.slow.intensity is not None else None
        return Output(logits, intensity, state.with_tensors(rest))

    def _close(self, group: Group, paths: Sequence[PathState]) -> list[PathState]:
        sums = [path.chunk_sum for path in paths if path.chunk_sum is not None]
        after = self._run_close[group](len(sums[0]), [path.ssm for path in paths], sums)
        closed = zip(paths, after[: len(paths)], after[len(paths) :], strict=True)
        return [replace(path, ssm=ssm, chunk_sum=chunk_sum) for path, ssm, chunk_sum in closed]


class _Compiled:
    """One piece, compiled on first use. Weights are folded in (freezing), which only holds if it is set before that moment."""

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
            except Exception as error:  # tracer, code generator and C++ compiler each fail in ways of their own
                reason = " ".join(str(error).split())[:300]
                raise EngineError(f"torch.compile failed on this machine ({reason}); use the eager or onnx engine.") from None
        outputs = [result] if isinstance(result, Tensor) else list(result)
        return [output.clone() for output in outputs] if self._captures else outputs  # the next replay writes to the same place
