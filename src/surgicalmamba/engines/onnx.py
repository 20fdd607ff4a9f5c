"""The `onnx` engine: exported graphs run by ONNX Runtime, without the model's weights in torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.engines.engine import EXPORT_FILE
from surgicalmamba.engines.pieces import PieceEngine
from surgicalmamba.errors import ConfigError, EngineError
from surgicalmamba.model.surgical_mamba import ModelConfig, empty_state

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

FORMAT = 1
ENCODED_AT_ONCE = 2
"""Pictures in one run of the encoder. With more, the activations leave the processor's caches."""


def onnx_runtime() -> ModuleType:
    """The onnxruntime package, or one line on how to get it."""
    try:
        import onnxruntime
    except ImportError as error:
        advice = "run: pip install 'surgicalmamba[onnx]'"
        raise EngineError(f"the onnx engine needs onnxruntime ({error}); {advice}") from None
    return onnxruntime


def read_export(folder: Path) -> dict[str, object]:
    """The content of export.json in an export folder."""
    file = folder / EXPORT_FILE
    if not file.is_file():
        raise EngineError(
            f"{folder} is no export: it has no {EXPORT_FILE}. Make one with `surgicalmamba export`."
        )
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{file} cannot be read: {error}; export again.") from None
    is_whole = (
        isinstance(about, dict) and isinstance(about.get("model"), dict) and bool(about.get("fingerprint"))
    )
    if not is_whole or about.get("format") != FORMAT:
        raise EngineError(f"{file} is not an export of format {FORMAT}; export again with this version.")
    return about


class OnnxEngine(PieceEngine):
    """Graphs with explicit state in and out, which read and write torch's memory without copies."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        about = read_export(folder)
        try:
            config = ModelConfig(**about["model"])  # type: ignore[arg-type]
        except (ConfigError, TypeError) as error:
            raise EngineError(f"{folder / EXPORT_FILE}: {error}") from None
        super().__init__(config)
        self.folder = folder
        self.fingerprint = str(about["fingerprint"])
        self._name = "onnx-int8" if about.get("precision") == "int8" else "onnx"
        options = session_options(threads or torch.get_num_threads())
        self._step_session = _open(folder / "step.onnx", options)
        self._encode_session = None if config.backbone is None else _open(folder / "encode.onnx", options)
        self._close_sessions = {
            group: _open(folder / f"close_{group}.onnx", options) for group in self._grids
        }

    @property
    def name(self) -> str:
        return self._name

    def initial_state(self, n_lanes: int) -> ModelState:
        return empty_state(self.config, n_lanes)

    def _encode(self, frames: Tensor) -> Tensor:
        assert self._encode_session is not None
        features = torch.empty(len(frames), self.config.feature_width)
        batches = zip(frames.cpu().split(ENCODED_AT_ONCE), features.split(ENCODED_AT_ONCE), strict=True)
        for pictures, place in batches:
            _run(self._encode_session, [pictures], [place])
        return features

    def _step(self, features: Tensor, state: list[Tensor]) -> list[Tensor]:
        config = self.config
        widths = (
            [config.n_phases] if config.block.slow.intensity is None else [config.n_phases, config.n_blocks]
        )
        outputs = [torch.empty(len(features), width) for width in widths] + [
            torch.empty_like(t) for t in state
        ]
        _run(self._step_session, [features.cpu(), *state], outputs)
        return outputs

    def _close(self, group: Group, ssm: list[Tensor], chunk_sum: list[Tensor]) -> list[Tensor]:
        after = [torch.empty_like(tensor) for tensor in (*ssm, *chunk_sum)]
        _run(self._close_sessions[group], [*ssm, *chunk_sum], after)
        return after


def session_options(threads: int) -> "SessionOptions":
    """A thread pool per graph, which must stop spinning when its graph ends: the graphs share the cores."""
    options = onnx_runtime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _open(file: Path, options: "SessionOptions") -> "InferenceSession":
    runtime = onnx_runtime()
    available = runtime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    try:
        return runtime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # the runtime raises many unrelated classes
        reason = " ".join(str(error).split())[:300]
        raise EngineError(f"{file} does not load in ONNX Runtime ({reason}); export again.") from None


_ELEMENT_TYPES = {torch.float32: 1, torch.uint8: 2}  # numbers of onnx.TensorProto


def _run(session: "InferenceSession", inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Run a graph on CPU tensors, in the graph's own order of inputs and outputs."""
    binding = session.io_binding()
    held = [tensor.contiguous() for tensor in inputs]  # the runtime reads them by address
    bindings = (
        (binding.bind_input, session.get_inputs(), held),
        (binding.bind_output, session.get_outputs(), outputs),
    )
    for bind, places, tensors in bindings:
        for place, tensor in zip(places, tensors, strict=True):
            bind(place.name, "cpu", 0, _ELEMENT_TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
    session.run_with_iobinding(binding)
