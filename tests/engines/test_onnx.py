"""The onnx engine: exported graphs give the model's output, for any number of lanes at any frames."""

import subprocess
import sys

import pytest
import torch

from engines.conftest import run_beside_eager
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.engines.onnx import OnnxEngine
from surgicalmamba.engines.select import open_exported
from surgicalmamba.errors import EngineError, InputError, NonFiniteError
from surgicalmamba.model.surgical_mamba import SurgicalMamba


@pytest.mark.parametrize("start", [[0], [20, 3, 11, 0], [7, 7]], ids=["one", "apart", "together"])
def test_lanes_at_any_frames_agree_with_eager_over_chunks_and_clips(model, exported, start):
    logits, state = run_beside_eager(OnnxEngine(exported), EagerEngine(model), start, n_frames=50)
    assert logits < 1e-5 and state < 1e-5


def test_int8_stays_close_over_chunks_and_clips(model, exported_int8):
    engine = OnnxEngine(exported_int8)
    assert engine.name == "onnx-int8"
    logits, _ = run_beside_eager(engine, EagerEngine(model), [0, 5], n_frames=50)
    assert 0 < logits < 0.15  # the logits themselves are of order one


def test_pictures_are_encoded_as_by_the_model_in_batches_of_any_size(model, exported):
    pictures = torch.randint(
        0, 256, (11, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    expected = EagerEngine(model).encode(pictures)
    engine = OnnxEngine(exported)
    torch.testing.assert_close(engine.encode(pictures), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(engine.encode(pictures[3:4]), expected[3:4], rtol=1e-4, atol=1e-5)


def test_the_state_given_is_not_written_to(exported):
    engine = OnnxEngine(exported)
    state = engine.initial_state(2).at([7, 21]).map(torch.ones_like)
    engine.advance(torch.ones(2, 10), state)
    assert all(bool((tensor == 1).all()) for tensor in state.tensors())


def test_what_does_not_fit_is_refused_in_one_line(exported):
    engine = OnnxEngine(exported)
    with pytest.raises(InputError, match=r"expected float32 \(2, 10\)"):
        engine.advance(torch.zeros(2, 9), engine.initial_state(2))
    with pytest.raises(InputError, match="expected uint8"):
        engine.encode(torch.zeros(1, 32, 32, 3))
    broken = torch.zeros(2, 10)
    broken[1, 4] = torch.nan
    with pytest.raises(NonFiniteError, match="lane 1, frame 6"):
        engine.advance(broken, engine.initial_state(2).at([0, 6]))


def test_an_export_is_opened_without_building_the_model(exported, monkeypatch):
    monkeypatch.setattr(SurgicalMamba, "__init__", None)  # any attempt to build one fails
    engine = open_exported(exported)
    assert engine.initial_state(2).n_lanes == 2


def test_an_export_whose_weights_were_damaged_is_refused_with_figures(damaged):
    data = damaged / "step.onnx.data"
    blob = bytearray(data.read_bytes())
    blob[4096:8192] = bytes(4096)
    data.write_bytes(blob)
    with pytest.raises(EngineError, match=r"onnx engine is refused: over \d+ frames .* logits \d\.\de"):
        open_exported(damaged)


@pytest.mark.parametrize("file", ["step.onnx", "close_head.onnx", "export.json", "check.safetensors"])
def test_an_export_with_a_truncated_file_is_refused_in_one_line(damaged, file):
    content = (damaged / file).read_bytes()
    (damaged / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(EngineError, match="export again") as caught:
        open_exported(damaged)
    assert "\n" not in str(caught.value)


def test_without_onnxruntime_one_line_says_what_to_install(exported):
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from surgicalmamba.engines.select import open_exported\n"
        f"open_exported({str(exported)!r})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        "EngineError: the onnx engine needs onnxruntime" in result.stderr
        and "pip install 'surgicalmamba[onnx]'" in result.stderr
    )
