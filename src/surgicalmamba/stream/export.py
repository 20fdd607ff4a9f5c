"""Write a model as ONNX graphs with explicit state: encode, step, and the end of a chunk for each group of paths."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

from surgicalmamba.core import chunks
from surgicalmamba.core.rotation import solve_by_blocks
from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.errors import EngineError, InputError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.layout import rotation_grids
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.stream.card import model_card
from surgicalmamba.stream.eager import EagerEngine
from surgicalmamba.stream.exported import EXPORT_FILE, FORMAT, ExportedEngine, onnx_runtime, read_export
from surgicalmamba.stream.parity import Parity, answers, require, write_answers
from surgicalmamba.stream.pieces import ClosePiece, EncodePiece, StepPiece
from surgicalmamba.stream.quantise import STEP_WAYS, StepWay, quantise_dynamic, quantise_step, quiet
from surgicalmamba.stream.recurrence import logit_error
from surgicalmamba.version import __version__

ANSWERS_FILE = "check.safetensors"
EXAMPLE_LANES = 2  # the exporter would take a single lane for a fixed size


def export(
    model: AnyRecognizer,
    out: Path,
    int8: bool = False,
    step_way: StepWay | None = None,
    provenance: Mapping[str, object] | None = None,
    graphs_from: Path | None = None,
) -> Parity:
    """Write an export folder, whole or not at all. `step_way` None tries both int8 forms of the step and keeps the one that agrees
    better with eager. `graphs_from` is a float32 export of the same model, whose graphs then need not be made again. The folder is
    refused, and not written, when its graphs do not compute what the model does."""
    if not isinstance(model, SurgicalMamba):
        raise EngineError(f"only SurgicalMamba can be exported; {model.name} runs on the eager engine, from its checkpoint.")
    _require_packages()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not empty; choose another folder or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        os.chmod(staging, 0o755)
        frozen = _frozen_copy(model)
        if graphs_from is None:
            write_graphs(frozen, staging)
        else:
            _copy_graphs(graphs_from, staging)
        parity = _write(frozen, staging, int8, step_way, provenance or {})
        if out.exists():
            out.rmdir()
        os.replace(staging, out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return parity


def _require_packages() -> None:
    onnx_runtime()
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise EngineError(f"exporting needs onnx and onnxscript ({error}); run: pip install 'surgicalmamba[onnx]'") from None


def _frozen_copy(model: SurgicalMamba) -> SurgicalMamba:
    """The model in float32 on the CPU; the weights are shared when it is there already."""
    weight = model.head.classifier.weight
    if weight.dtype != torch.float32:
        raise InputError(f"the model's weights are {weight.dtype}; engines run float32 models, convert with model.float().")
    return model.eval() if weight.device.type == "cpu" else deepcopy(model).cpu().eval()


def _write(model: SurgicalMamba, folder: Path, int8: bool, step_way: StepWay | None, provenance: Mapping[str, object]) -> Parity:
    """Everything but the graphs in float32, which are there."""
    about = describe(model, "int8" if int8 else "fp32")
    _write_json(folder / EXPORT_FILE, about)
    eager = EagerEngine(model)
    figures: dict[str, object] = {}
    if int8:
        figures["step_ways"] = _to_int8(folder, eager, step_way)
    reference = answers(eager)
    write_answers(reference, folder / ANSWERS_FILE)
    parity = require(ExportedEngine(folder), reference)
    figures = {**parity.as_dict(), **figures}
    _write_json(folder / "parity.json", figures)
    shutil.copyfile(chunks.__file__, folder / "chunks.py")
    shutil.copyfile(Path(__file__).with_name("standalone.py"), folder / "run.py")
    (folder / "README.md").write_text(model_card(folder, about, figures, provenance), encoding="utf-8")
    for file in folder.iterdir():
        os.chmod(file, 0o644)  # some libraries create their files for the owner alone
    return parity


def _copy_graphs(source: Path, folder: Path) -> None:
    if read_export(source).get("precision") != "fp32":
        raise InputError(f"{source} is not a float32 export; graphs can be taken from such only.")
    for file in (*source.glob("*.onnx"), *source.glob("*.onnx.data")):
        shutil.copyfile(file, folder / file.name)


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _to_int8(folder: Path, eager: EagerEngine, way: StepWay | None) -> dict[str, object]:
    """Replace encode and step by int8 graphs. The end of a chunk stays float32: it is run rarely, and a rotation must keep norms."""
    if (folder / "encode.onnx").exists():
        quantise_dynamic(folder / "encode.onnx", folder / "encode.onnx")
    exact = folder / "exact"
    exact.mkdir()
    for name in ("step.onnx", "step.onnx.data"):
        os.replace(folder / name, exact / name)
    errors: dict[StepWay, float] = {}
    for candidate in STEP_WAYS if way is None else (way,):
        quantise_step(exact / "step.onnx", folder / "step.onnx", candidate)
        errors[candidate] = logit_error(ExportedEngine(folder), eager)
    best = min(errors, key=lambda candidate: errors[candidate])
    if best != candidate:
        quantise_step(exact / "step.onnx", folder / "step.onnx", best)
    shutil.rmtree(exact)
    return {"used": best, "logit_error": errors}


def write_graphs(model: SurgicalMamba, folder: Path) -> None:
    """encode.onnx, step.onnx and close_*.onnx, each with its weights in a file beside it. The number of lanes is free."""
    state, config = model.initial_state(EXAMPLE_LANES), model.config
    names = state.names()
    if config.backbone is not None:
        size = config.backbone.image_size
        pictures = torch.zeros(EXAMPLE_LANES, size, size, 3, dtype=torch.uint8)
        _export(EncodePiece(model), (pictures,), ["frames"], ["features"], folder / "encode.onnx")
    features = torch.zeros(EXAMPLE_LANES, config.feature_width)
    intensity = [] if config.block.slow.intensity is None else ["intensity_logits"]
    outputs = ["logits", *intensity, *(f"next.{name}" for name in names)]
    _export(StepPiece(model), (features, state.tensors()), ["features", *names], outputs, folder / "step.onnx")
    for group in model.rotating_paths():
        paths = state.group(group)
        inputs = closing_inputs(state, group)
        sums = [path.chunk_sum for path in paths if path.chunk_sum is not None]
        piece = ClosePiece(model, group, solve_by_blocks)
        _export(piece, ([path.ssm for path in paths], sums), inputs, [f"next.{name}" for name in inputs], folder / f"close_{group}.onnx")


def closing_inputs(state: ModelState, group: Group) -> list[str]:
    """Names of what the end of a chunk changes in a group: first all states, then all chunk sums."""
    return [f"{path}.{kind}" for kind in ("ssm", "chunk_sum") for path in path_names(state, group)]


def path_names(state: ModelState, group: Group) -> list[str]:
    return ["head"] if group == "head" else [f"blocks.{i}.{group}" for i in range(len(state.group(group)))]


def _export(piece: nn.Module, args: tuple[Tensor | list[Tensor], ...], inputs: Sequence[str], outputs: Sequence[str], file: Path) -> None:
    lanes = torch.export.Dim("lanes")
    shapes = tuple([{0: lanes}] * len(arg) if isinstance(arg, list) else {0: lanes} for arg in args)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            piece.eval(), args, dynamo=True, dynamic_shapes=shapes, input_names=inputs, output_names=outputs, verbose=False
        )
        assert program is not None
        program.save(str(file), external_data=True)


def describe(model: SurgicalMamba, precision: str) -> dict[str, object]:
    """export.json: everything a program needs to run the graphs."""
    config, state = model.config, model.initial_state(1)
    full = state.map(torch.ones_like).reset_clip([0])
    emptied = [name for name, tensor in zip(full.names(), full.tensors(), strict=True) if not tensor.any()]
    closes = [
        {
            "group": group,
            "file": f"close_{group}.onnx",
            "chunk_len": grid.chunk_len,
            "clip_len": grid.clip_len,
            "paths": path_names(state, group),
        }
        for group, grid in rotation_grids(config).items()
    ]
    return {
        "format": FORMAT,
        "fingerprint": fingerprint(model),
        "surgicalmamba": __version__,
        "precision": precision,
        "model": config.model_dump(mode="json"),
        "phases": list(config.phases or (str(k) for k in range(config.n_phases))),
        "has_encoder": config.backbone is not None,
        "state": [{"name": n, "shape": list(t.shape[1:])} for n, t in zip(state.names(), state.tensors(), strict=True)],
        "closes": closes,
        "clip_len": config.clip_len,
        "emptied_at_clip_end": emptied,
    }
