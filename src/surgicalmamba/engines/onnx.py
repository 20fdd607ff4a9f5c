"""The `onnx` engine: exported graphs run by ONNX Runtime. It needs the export folder alone; no weights of the model are in memory."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surgicalmamba.core.state import Group, ModelState, PathState
from surgicalmamba.engines.pieces import CapturedEngine
from surgicalmamba.errors import ConfigError, EngineError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.model.surgical_mamba import ModelConfig, empty_state

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

EXPORT_FILE = "export.json"
FORMAT = 1
ENCODED_AT_ONCE = 2
"""Pictures in one run of the encoder. With more, the activations leave the processor's caches and each picture takes longer."""


def onnx_runtime() -> ModuleType:
    """The onnxruntime package, or one line on how to get it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineError(f"the onnx engine needs onnxruntime ({error}); run: pip install 'surgicalmamba[onnx]'") from None
    return onnxruntime


def read_export(folder: Path) -> dict[str, object]:
    """What export.json of an export folder says."""
    file = folder / EXPORT_FILE
    if not file.is_file():
        raise EngineError(f"{folder} is no export: there is no {EXPORT_FILE} in it. Make one with `surgicalmamba export`.")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{file} cannot be read: {error}; export again.") from None
    complete = isinstance(about, dict) and isinstance(about.get("model"), dict) and bool(about.get("fingerprint"))
    if not complete or about.get("format") != FORMAT:
        raise EngineError(f"{file} is not an export of format {FORMAT}; export again with this version.")
    return about


class ExportedEngine(CapturedEngine):
    """Graphs with explicit state in and out. Inputs are read and outputs written where torch keeps them, without copies."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        about = read_export(folder)
        try:
            config = ModelConfig(**about["model"])  # type: ignore[arg-type]
        except (ConfigError, TypeError) as error:
            raise EngineError(f"{folder / EXPORT_FILE}: {error}") from None
        super().__init__(config)
        self.folder = folder
        self.fingerprint = str(about["fingerprint"])
        self._int8 = about.get("precision") == "int8"
        options = session_options(threads or torch.get_num_threads())
        self._step_session = _open(folder / "step.onnx", options)
        self._encode_session = None if config.backbone is None else _open(folder / "encode.onnx", options)
        self._close_sessions = {group: _open(folder / f"close_{group}.onnx", options) for group in self._grids}

    @property
    def name(self) -> str:
        return "onnx-int8" if self._int8 else "onnx"

    def initial_state(self, n_lanes: int) -> ModelState:
        return empty_state(self.config, n_lanes)

    def _encode(self, frames: Tensor) -> Tensor:
        assert self._encode_session is not None
        features = torch.empty(len(frames), self.config.feature_width)
        for pictures, place in zip(frames.cpu().split(ENCODED_AT_ONCE), features.split(ENCODED_AT_ONCE), strict=True):
            _run(self._encode_session, [pictures], [place])
        return features

    def _step(self, features: Tensor, state: ModelState) -> Output[ModelState]:
        b, config = state.n_lanes, self.config
        logits = torch.empty(b, config.n_phases)
        intensity = None if config.block.slow.intensity is None else torch.empty(b, config.n_blocks)
        after = state.map(torch.empty_like)
        outputs = [logits, *([] if intensity is None else [intensity]), *after.tensors()]
        _run(self._step_session, [features.cpu(), *state.tensors()], outputs)
        return Output(logits, intensity, after)

    def _close(self, group: Group, paths: Sequence[PathState]) -> list[PathState]:
        before = [*(path.ssm for path in paths), *(path.chunk_sum for path in paths if path.chunk_sum is not None)]
        after = [torch.empty_like(tensor) for tensor in before]
        _run(self._close_sessions[group], before, after)
        closed = zip(paths, after[: len(paths)], after[len(paths) :], strict=True)
        return [replace(path, ssm=ssm, chunk_sum=chunk_sum) for path, ssm, chunk_sum in closed]


def session_options(threads: int) -> "SessionOptions":
    """One pool of threads per graph. It may spin while its graph runs; then it must stop, since the graphs take turns on the same cores."""
    options = onnx_runtime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _open(file: Path, options: "SessionOptions") -> "InferenceSession":
    runtime = onnx_runtime()
    wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in runtime.get_available_providers()]
    try:
        return runtime.InferenceSession(str(file), options, providers=wanted)
    except Exception as error:  # the runtime raises many unrelated classes
        reason = " ".join(str(error).split())[:300]
        raise EngineError(f"{file} does not load in ONNX Runtime ({reason}); export again.") from None


_ELEMENT_TYPES = {torch.float32: 1, torch.uint8: 2}  # numbers of onnx.TensorProto


def _run(session: "InferenceSession", inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Run a graph on CPU tensors, in the graph's own order of inputs and outputs."""
    binding = session.io_binding()
    held = [tensor.contiguous() for tensor in inputs]  # the runtime reads them by address
    for place, tensor in zip(session.get_inputs(), held, strict=True):
        binding.bind_input(place.name, "cpu", 0, _ELEMENT_TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
    for place, tensor in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_output(place.name, "cpu", 0, _ELEMENT_TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
    session.run_with_iobinding(binding)
