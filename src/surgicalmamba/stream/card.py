"""The model card of an export: what the files are, what goes in and out, where they come from, how well they agree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surgicalmamba.data.preprocess import MEDIAN_SIZE, OUTER_COLUMNS, SEARCH_HEIGHT, THRESHOLD, Preprocess


def model_card(folder: Path, about: Mapping[str, Any], figures: Mapping[str, Any], provenance: Mapping[str, object]) -> str:
    """README.md of an export folder."""
    config = about["model"]
    lines = [
        "# Exported surgical phase recognizer",
        "",
        f"SurgicalMamba as ONNX graphs, {about['precision']}, written by surgicalmamba {about['surgicalmamba']}.",
        "It reads an operation frame by frame and says which phase it is in, from that frame and the past alone.",
        "",
        "**Research software, not a medical device: no estimate of it may guide a treatment.**",
        "",
        "## Run it",
        "",
        "`python run.py --features features.npy --out phases.csv` needs numpy and onnxruntime and nothing else.",
        "`run.py` is short: read it to use the graphs from another language.",
        "",
        "A frame is one run of `step.onnx`; its `next.*` outputs are the next frame's inputs, all zero before the first. Chunks end at the",
        "frames that `closes_after` of `chunks.py` names; then, after the step, the group's graph turns its part of the state:",
        "",
        "| after every | counted | graph |",
        "|---|---|---|",
        *(_boundary_row(group) for group in about["closes"]),
        "",
        f"After every {about['clip_len']} frames the state that `export.json` lists under `emptied_at_clip_end` is set to zero.",
        "",
        "## Inputs and outputs",
        "",
        "`lanes` is free: a batch of independent operations.",
        "",
        "| graph | input or output | type | shape |",
        "|---|---|---|---|",
        *_graph_rows(folder),
        "",
        "## Phases",
        "",
        *(f"{k}. {name}" for k, name in enumerate(about["phases"])),
        "",
        "## Preprocessing",
        "",
        *_preprocessing(config),
        "",
        "## Provenance",
        "",
        *([f"- {key}: {value}" for key, value in provenance.items()] or ["The checkpoint says nothing about its training."]),
        "",
        "## Agreement with the model in PyTorch",
        "",
        *_agreement(figures),
        "",
    ]
    return "\n".join(lines)


def _boundary_row(group: Mapping[str, Any]) -> str:
    counted = "over the whole operation" if group["clip_len"] is None else f"anew every {group['clip_len']} frames"
    return f"| {group['chunk_len']} frames | {counted} | `{group['file']}` |"


def _graph_rows(folder: Path) -> list[str]:
    """Every input and output as the files themselves declare them."""
    import onnx

    rows = []
    for file in sorted(folder.glob("*.onnx")):
        graph = onnx.load(str(file), load_external_data=False).graph
        for kind, places in (("in", graph.input), ("out", graph.output)):
            for place in places:
                tensor = place.type.tensor_type
                shape = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
                kept_as = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
                rows.append(f"| `{file.name}` | {kind} `{place.name}` | {kept_as} | ({shape}) |")
    return rows


def _preprocessing(config: Mapping[str, Any]) -> list[str]:
    backbone = config["backbone"]
    if backbone is None:
        return [f"The recognizer takes feature vectors of width {config['d_feature']}, as it was trained on."]
    size, stored = backbone["image_size"], Preprocess()
    return [
        "Frames as `surgicalmamba prepare` makes them:",
        f"RGB; scaled to height {SEARCH_HEIGHT}; grey above {THRESHOLD}, median over {MEDIAN_SIZE} x {MEDIAN_SIZE};",
        f"cropped to the bounding box of what is left, without the outer {OUTER_COLUMNS} columns;",
        f"resized to {stored.size} x {stored.size}, then to {size} x {size}.",
        f"`encode.onnx` takes these bytes and normalises them itself (mean {backbone['mean_rgb']}, deviation {backbone['std_rgb']}).",
    ]


def _agreement(figures: Mapping[str, Any]) -> list[str]:
    features = "" if figures["features"] is None else f"features {figures['features']:.1e}, "
    lines = [
        f"Largest difference over the largest value, on {figures['frames']} made-up frames that lead over the ends of chunks and clips:",
        f"{features}logits {figures['logits']:.1e}, state {figures['state']:.1e} (limit {figures['tolerance']:g}).",
        "`parity.json` has the figures.",
    ]
    if "step_ways" in figures:
        ways = figures["step_ways"]
        tried = ", ".join(f"{way} {error:.1e}" for way, error in ways["logit_error"].items())
        lines.append(f"int8 forms of the step, error of the logits from the first frame on: {tried}; used: {ways['used']}.")
    return lines
