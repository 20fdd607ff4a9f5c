"""Write a model as ONNX graphs with explicit state: encode, step, and the end of a chunk per group of paths.

An export folder also holds export.json, a model card, the parity figures and a script that runs the graphs
with numpy and onnxruntime alone."""

import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from surgicalmamba.core import chunks
from surgicalmamba.core.rotation import solve_by_blocks
from surgicalmamba.core.state import Group, ModelState
from surgicalmamba.data.pictures import MEDIAN_SIZE, OUTER_COLUMNS, SEARCH_HEIGHT, THRESHOLD, Preprocess
from surgicalmamba.engines.engine import EXPORT_FILE, EagerEngine
from surgicalmamba.engines.onnx import FORMAT, OnnxEngine, onnx_runtime, read_export
from surgicalmamba.engines.parity import Parity, answers, logit_error, require, write_answers
from surgicalmamba.engines.pieces import ClosePiece, EncodePiece, StepPiece
from surgicalmamba.errors import EngineError, InputError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.surgical_mamba import SurgicalMamba, rotation_grids
from surgicalmamba.version import __version__

ANSWERS_FILE = "check.safetensors"
EXAMPLE_LANES = 2  # the exporter would take a single lane for a fixed size

StepWay = Literal["weight-only", "dynamic"]
"""How the step multiplies in int8. weight-only: weights in blocks of 32 with a scale each. dynamic: one scale
per column, and one per call for the activations. Both multiply bytes."""
STEP_WAYS: tuple[StepWay, ...] = get_args(StepWay)
BLOCK = 32


def export(
    model: AnyRecognizer,
    out: Path,
    int8: bool = False,
    step_way: StepWay | None = None,
    provenance: Mapping[str, object] | None = None,
    graphs_from: Path | None = None,
) -> Parity:
    """Write an export folder, whole or not at all. `step_way` None tries both int8 forms of the step and
    keeps the one that agrees better with eager. `graphs_from` is a float32 export of the same model, whose
    graphs are reused. Raises EngineError, and writes nothing, when the graphs differ from the model."""
    if not isinstance(model, SurgicalMamba):
        raise EngineError(f"only SurgicalMamba can be exported; {model.name} runs on the eager engine.")
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
        parity = _write_rest(frozen, staging, int8, step_way, provenance or {})
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
        advice = "run: pip install 'surgicalmamba[onnx]'"
        raise EngineError(f"exporting needs onnx and onnxscript ({error}); {advice}") from None


def _frozen_copy(model: SurgicalMamba) -> SurgicalMamba:
    """The model in float32 on the CPU; the weights are shared when it is there already."""
    weight = model.head.classifier.weight
    if weight.dtype != torch.float32:
        raise InputError(f"the weights are {weight.dtype}; engines run float32, convert with model.float().")
    return model.eval() if weight.device.type == "cpu" else deepcopy(model).cpu().eval()


def _copy_graphs(source: Path, folder: Path) -> None:
    if read_export(source).get("precision") != "fp32":
        raise InputError(f"{source} is not a float32 export; graphs can only be taken from such a one.")
    for file in (*source.glob("*.onnx"), *source.glob("*.onnx.data")):
        shutil.copyfile(file, folder / file.name)


def _write_rest(
    model: SurgicalMamba, folder: Path, int8: bool, step_way: StepWay | None, provenance: Mapping[str, object]
) -> Parity:
    """Everything but the graphs in float32, which are there."""
    about = describe(model, "int8" if int8 else "fp32")
    _write_json(folder / EXPORT_FILE, about)
    eager = EagerEngine(model)
    ways = {"step_ways": _to_int8(folder, eager, step_way)} if int8 else {}
    reference = answers(eager)
    write_answers(reference, folder / ANSWERS_FILE)
    parity = require(OnnxEngine(folder), reference)
    figures = {**parity.as_dict(), **ways}
    _write_json(folder / "parity.json", figures)
    shutil.copyfile(chunks.__file__, folder / "chunks.py")
    shutil.copyfile(Path(__file__).with_name("standalone.py"), folder / "run.py")
    (folder / "README.md").write_text(model_card(folder, about, figures, provenance), encoding="utf-8")
    for file in folder.iterdir():
        os.chmod(file, 0o644)  # some libraries create their files for the owner alone
    return parity


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def describe(model: SurgicalMamba, precision: str) -> dict[str, object]:
    """export.json: everything a program needs to run the graphs."""
    config, state = model.config, model.initial_state(1)
    full = state.map(torch.ones_like).reset_clip([0])
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
    named = [*zip(state.names(), state.tensors(), full.tensors(), strict=True)]
    return {
        "format": FORMAT,
        "fingerprint": fingerprint(model),
        "surgicalmamba": __version__,
        "precision": precision,
        "model": config.model_dump(mode="json"),
        "phases": list(config.phases or (str(k) for k in range(config.n_phases))),
        "has_encoder": config.backbone is not None,
        "state": [{"name": name, "shape": list(tensor.shape[1:])} for name, tensor, _ in named],
        "closes": closes,
        "clip_len": config.clip_len,
        "emptied_at_clip_end": [name for name, _, after in named if not after.any()],
    }


def path_names(state: ModelState, group: Group) -> list[str]:
    return ["head"] if group == "head" else [f"blocks.{i}.{group}" for i in range(len(state.group(group)))]


# The graphs.


def write_graphs(model: SurgicalMamba, folder: Path) -> None:
    """encode.onnx, step.onnx and close_*.onnx, each with a file of weights. The number of lanes is free."""
    state, config = model.initial_state(EXAMPLE_LANES), model.config
    if config.backbone is not None:
        size = config.backbone.image_size
        pictures = torch.zeros(EXAMPLE_LANES, size, size, 3, dtype=torch.uint8)
        _write_graph(EncodePiece(model), (pictures,), ["frames"], ["features"], folder / "encode.onnx")
    features = torch.zeros(EXAMPLE_LANES, config.feature_width)
    names = state.names()
    intensity = [] if config.block.slow.intensity is None else ["intensity_logits"]
    outputs = ["logits", *intensity, *(f"next.{name}" for name in names)]
    step = StepPiece(model)
    _write_graph(step, (features, state.tensors()), ["features", *names], outputs, folder / "step.onnx")
    for group in model.rotating_paths():
        paths = state.group(group)
        sums = [path.chunk_sum for path in paths if path.chunk_sum is not None]
        inputs = [f"{path}.{kind}" for kind in ("ssm", "chunk_sum") for path in path_names(state, group)]
        outputs = [f"next.{name}" for name in inputs]
        close = ClosePiece(model, group, solve_by_blocks)
        tensors = ([path.ssm for path in paths], sums)
        _write_graph(close, tensors, inputs, outputs, folder / f"close_{group}.onnx")


def _write_graph(
    piece: nn.Module,
    args: tuple[Tensor | list[Tensor], ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    file: Path,
) -> None:
    lanes = torch.export.Dim("lanes")
    shapes = tuple([{0: lanes}] * len(arg) if isinstance(arg, list) else {0: lanes} for arg in args)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            piece.eval(),
            args,
            input_names=inputs,
            output_names=outputs,
            dynamo=True,
            dynamic_shapes=shapes,
            verbose=False,
        )
        assert program is not None
        program.save(str(file), external_data=True)


# The int8 forms of the graphs. Weights become bytes; inputs and outputs stay float32.


def _to_int8(folder: Path, eager: EagerEngine, way: StepWay | None) -> dict[str, object]:
    """Replace encode and step by int8 graphs. The rare end of a chunk stays float32, to keep norms."""
    if (folder / "encode.onnx").exists():
        quantise_dynamic(folder / "encode.onnx", folder / "encode.onnx")
    exact = folder / "exact"
    exact.mkdir()
    for name in ("step.onnx", "step.onnx.data"):
        os.replace(folder / name, exact / name)
    errors: dict[StepWay, float] = {}
    quantise = {"weight-only": quantise_weights, "dynamic": quantise_dynamic}
    for candidate in STEP_WAYS if way is None else (way,):
        quantise[candidate](exact / "step.onnx", folder / "step.onnx")
        errors[candidate] = logit_error(OnnxEngine(folder), eager)
    best = min(errors, key=lambda candidate: errors[candidate])
    if best != candidate:
        quantise[best](exact / "step.onnx", folder / "step.onnx")
    shutil.rmtree(exact)
    return {"used": best, "logit_error": errors}


def quantise_weights(source: Path, target: Path) -> None:
    """MatMulNBits: 8 bits per weight in blocks, multiplied as bytes (accuracy level 4)."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with quiet(), _beside(target) as part:
        options = {"bits": 8, "block_size": BLOCK, "is_symmetric": True, "accuracy_level": 4}
        quantizer = MatMulNBitsQuantizer(onnx.load(str(source)), **options)
        quantizer.process()
        quantizer.model.save_model_to_file(str(part), use_external_data_format=True)


def quantise_dynamic(source: Path, target: Path) -> None:
    """MatMulInteger with 7-bit weights: CPUs without VNNI saturate when they add two 8-bit products."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet(), _beside(target) as part:
        quantize_dynamic(
            str(source),
            str(part),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A path for a graph and its data file under their final names; both are moved at the end."""
    with TemporaryDirectory(dir=target.parent, prefix=".int8-") as folder:
        part = Path(folder) / target.name
        yield part
        for file in (part.with_name(part.name + ".data"), part):
            if file.exists():
                os.replace(file, target.with_name(file.name))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's and quantiser's messages: a user can act on none of them."""
    root, silent = logging.getLogger(), logging.NullHandler()
    disabled = logging.root.manager.disable
    root.addHandler(silent)  # otherwise the first root-level warning installs a handler for good
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.removeHandler(silent)


# The model card.


def model_card(
    folder: Path, about: Mapping[str, Any], figures: Mapping[str, Any], provenance: Mapping[str, object]
) -> str:
    """README.md of an export folder."""
    origin = [f"- {key}: {value}" for key, value in provenance.items()]
    template = Path(__file__).with_name("export_card.md").read_text(encoding="utf-8")
    return template.format(
        precision=about["precision"],
        version=about["surgicalmamba"],
        boundaries="\n".join(_boundary_row(group) for group in about["closes"]),
        clip_len=about["clip_len"],
        graphs="\n".join(_graph_rows(folder)),
        phases="\n".join(f"{k}. {name}" for k, name in enumerate(about["phases"])),
        preprocessing="\n".join(_preprocessing(about["model"])),
        provenance="\n".join(origin or ["The checkpoint has no record of its training."]),
        agreement="\n".join(_agreement(figures)),
    )


def _boundary_row(group: Mapping[str, Any]) -> str:
    clip_len = group["clip_len"]
    counted = "over the whole operation" if clip_len is None else f"from zero every {clip_len} frames"
    return f"| {group['chunk_len']} frames | {counted} | `{group['file']}` |"


def _graph_rows(folder: Path) -> Iterator[str]:
    """Every input and output as the files themselves declare them."""
    import onnx

    for file in sorted(folder.glob("*.onnx")):
        graph = onnx.load(str(file), load_external_data=False).graph
        for kind, places in (("in", graph.input), ("out", graph.output)):
            for place in places:
                tensor = place.type.tensor_type
                shape = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
                stored_as = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
                yield f"| `{file.name}` | {kind} `{place.name}` | {stored_as} | ({shape}) |"


def _preprocessing(config: Mapping[str, Any]) -> list[str]:
    backbone = config["backbone"]
    if backbone is None:
        return [f"The recognizer takes feature vectors of width {config['d_feature']}, as it was trained on."]
    size, stored = backbone["image_size"], Preprocess()
    mean, deviation = backbone["mean_rgb"], backbone["std_rgb"]
    return [
        "Frames as `surgicalmamba prepare` makes them:",
        f"RGB; scaled to height {SEARCH_HEIGHT};",
        f"grey above {THRESHOLD}, median over {MEDIAN_SIZE} x {MEDIAN_SIZE};",
        f"cropped to the bounding box of what is left, without the outer {OUTER_COLUMNS} columns;",
        f"resized to {stored.size} x {stored.size}, then to {size} x {size}.",
        f"`encode.onnx` takes these bytes and normalises them itself (mean {mean}, deviation {deviation}).",
    ]


def _agreement(figures: Mapping[str, Any]) -> list[str]:
    features = "" if figures["features"] is None else f"features {figures['features']:.1e}, "
    n_frames, limit = figures["frames"], figures["tolerance"]
    lines = [
        f"Largest difference over the largest value, on {n_frames} artificial frames across chunk ends:",
        f"{features}logits {figures['logits']:.1e}, state {figures['state']:.1e} (limit {limit:g}).",
        "`parity.json` has the figures.",
    ]
    if ways := figures.get("step_ways"):
        tried = ", ".join(f"{way} {error:.1e}" for way, error in ways["logit_error"].items())
        lines.append(f"int8 forms of the step, error of the logits: {tried}; used: {ways['used']}.")
    return lines
