"""An export folder: complete, self-explaining, runnable without this package, and written whole or not at
all."""

import csv
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch

from engines.conftest import live_config, live_model
from surgicalmamba.engines import export as export_module
from surgicalmamba.engines.export import describe, export
from surgicalmamba.errors import EngineError, InputError
from surgicalmamba.model.surgical_mamba import SurgicalMamba

# Runs a script as __main__ in a process in which torch and this package cannot be imported.
WITHOUT_US = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "surgicalmamba"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_standalone(folder, *arguments):
    code = WITHOUT_US.replace("runpy.run_path", f"sys.path.insert(0, {str(folder)!r})\nrunpy.run_path")
    command = [sys.executable, "-c", code, str(folder / "run.py"), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    with open(arguments[-1], newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def logits_of(rows):
    return torch.tensor([[float(row[f"logit_{k}"]) for k in range(4)] for row in rows])


def test_the_script_of_an_export_needs_neither_torch_nor_this_package(model, exported, tmp_path):
    features = torch.randn(
        1, 75, 10, generator=torch.Generator().manual_seed(3)
    )  # three clips and the chunks in them
    np.save(tmp_path / "features.npy", features[0].numpy())
    rows = run_standalone(exported, "--features", tmp_path / "features.npy", "--out", tmp_path / "phases.csv")
    with torch.no_grad():
        expected = model.forward_features(features).logits[0]
    torch.testing.assert_close(logits_of(rows), expected, rtol=1e-4, atol=1e-5)
    assert [int(row["phase"]) for row in rows] == expected.argmax(-1).tolist()


def test_the_script_takes_pictures(model, exported, tmp_path):
    from surgicalmamba.engines.engine import EagerEngine

    pictures = torch.randint(
        0, 256, (9, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(4)
    )
    np.save(tmp_path / "frames.npy", pictures.numpy())
    rows = run_standalone(exported, "--frames", tmp_path / "frames.npy", "--out", tmp_path / "phases.csv")
    with torch.no_grad():
        expected = model.forward_features(EagerEngine(model).encode(pictures)[None].clone()).logits[0]
    torch.testing.assert_close(logits_of(rows), expected, rtol=1e-4, atol=1e-5)


def test_the_folder_explains_itself(exported, exported_int8):
    names = {file.name for file in exported.iterdir()}
    graphs = {"encode.onnx", "step.onnx", "close_slow.onnx", "close_fast.onnx", "close_head.onnx"}
    others = {"README.md", "check.safetensors", "chunks.py", "export.json", "parity.json", "run.py"}
    assert names == graphs | {f"{graph}.data" for graph in graphs} | others
    card = (exported / "README.md").read_text(encoding="utf-8")
    for needed in (
        "not a medical device",
        "| `step.onnx` | in `blocks.0.slow.ssm` | float | (lanes, 4, 8, 5) |",
        "trained on: nothing",
    ):
        assert needed in card
    figures = json.loads((exported / "parity.json").read_text(encoding="utf-8"))
    assert figures["holds"] and figures["logits"] < 1e-5 and f"logits {figures['logits']:.1e}" in card
    ways = json.loads((exported_int8 / "parity.json").read_text(encoding="utf-8"))["step_ways"]
    assert set(ways["logit_error"]) == {"weight-only", "dynamic"}
    assert ways["used"] == min(ways["logit_error"], key=ways["logit_error"].get)


def test_int8_graphs_multiply_bytes_and_the_end_of_a_chunk_stays_exact(exported_int8):
    def operators(name):
        return {
            node.op_type for node in onnx.load(str(exported_int8 / name), load_external_data=False).graph.node
        }

    assert "MatMulInteger" in operators("encode.onnx")
    assert operators("step.onnx") & {"MatMulNBits", "MatMulInteger"}
    assert not operators("close_slow.onnx") & {"MatMulNBits", "MatMulInteger"}


@pytest.mark.parametrize("way", ["weight-only", "dynamic"])
def test_either_int8_form_of_the_step_can_be_asked_for(model, exported, tmp_path, way):
    export(model, tmp_path / "int8", int8=True, step_way=way, graphs_from=exported)
    graph = onnx.load(str(tmp_path / "int8" / "step.onnx"), load_external_data=False).graph
    wanted = {"weight-only": "MatMulNBits", "dynamic": "MatMulInteger"}[way]
    assert wanted in {node.op_type for node in graph.node}


def test_the_rotation_networks_are_in_the_closing_graphs_only(model, exported):
    sizes = {
        file.name: sum(int(np.prod(t.dims)) for t in onnx.load(str(file)).graph.initializer)
        for file in exported.glob("*.onnx")
    }
    rotation = sum(p.numel() for name, p in model.named_parameters() if ".rotator." in name)
    temporal = (
        sum(p.numel() for name, p in model.named_parameters() if not name.startswith("backbone.")) - rotation
    )
    assert sum(size for name, size in sizes.items() if name.startswith("close_")) >= rotation
    assert sizes["step.onnx"] < 1.1 * temporal  # a few shapes and index constants beside the weights


def test_a_model_without_some_parts_says_so_in_what_it_exports():
    plain = SurgicalMamba(live_config(backbone=None, d_feature=10).variant("without-z"))
    about = describe(plain, "fp32")
    assert about["closes"] == [] and about["has_encoder"] is False
    assert about["emptied_at_clip_end"] == [
        "blocks.0.fast.ssm",
        "blocks.0.fast.conv_tail",
        "head.ssm",
        "head.conv_tail",
    ]


def test_a_folder_with_something_in_it_is_left_alone(model, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        export(model, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_that_does_not_compute_the_model_leaves_nothing_behind(exported, tmp_path, monkeypatch):
    other = live_model()
    with torch.no_grad():
        other.head.classifier.weight.mul_(1.5)  # the graphs given belong to another model
    with pytest.raises(EngineError, match="is refused"):
        export(other, tmp_path / "out", graphs_from=exported)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(export_module, "_copy_graphs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        export(other, tmp_path / "out", graphs_from=exported)
    assert list(tmp_path.iterdir()) == []


def test_double_precision_models_are_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match=r"float64.*model\.float\(\)"):
        export(live_model().double(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
