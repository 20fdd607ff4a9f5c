"""Opening engines by name: the parity check refuses wrong ones, `auto` measures once and remembers."""

from dataclasses import replace

import pytest
import torch

from engines.conftest import live_config, live_model
from surgicalmamba.engines import select as engines
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.engines.onnx import OnnxEngine
from surgicalmamba.engines.parity import answers, check_starts, compare, require
from surgicalmamba.engines.select import export_key, open_engine, read_choice, setting_key, write_choice
from surgicalmamba.errors import EngineError, SessionError
from surgicalmamba.model.checkpoint import fingerprint


class Broken(EagerEngine):
    """Eager with one thing wrong."""

    name = "broken"

    def __init__(self, model, wrong):
        super().__init__(model)
        self.wrong = wrong

    def encode(self, frames):
        return super().encode(frames) * (1.01 if self.wrong == "features" else 1)

    def advance(self, features, state):
        output = super().advance(features, state)
        if self.wrong == "logits":
            return replace(output, logits=output.logits + 0.01)
        if self.wrong == "nan":
            return replace(output, logits=output.logits * torch.nan)
        if (
            self.wrong == "no rotation"
            and output.state.frame_index[0] % self.config.block.slow.chunk_len == 0
        ):
            before = [path.map(torch.clone) for path in output.state.group("slow")]
            turned = [replace(path, ssm=path.ssm.flip(-1)) for path in before]
            return replace(output, state=output.state.with_group("slow", turned))
        if self.wrong == "no clip end" and output.state.frame_index[0] % self.config.clip_len == 0:
            return replace(
                output, state=output.state.with_group("head", [output.state.head.map(lambda t: t + 0.1)])
            )
        return output


@pytest.mark.parametrize("wrong", ["features", "logits", "nan", "no rotation", "no clip end"])
def test_an_engine_with_one_thing_wrong_is_refused_with_the_figures(model, wrong):
    reference = answers(EagerEngine(model))
    with pytest.raises(
        EngineError,
        match=r"broken engine is refused: over 20 frames it differs from eager by features .*more than "
        r"0\.001",
    ):
        require(Broken(model, wrong), reference)


def test_eager_agrees_with_itself_exactly(model):
    parity = compare(EagerEngine(model), answers(EagerEngine(model)))
    assert (parity.features, parity.logits, parity.state) == (0, 0, 0) and parity.holds


def test_the_check_leads_over_the_end_of_every_kind_of_chunk_and_of_a_clip():
    assert check_starts(live_config()) == [
        2,
        3,
        5,
        19,
    ]  # 3 frames before 5 (head), 6 (fast), 8 (slow) and 22 (clip)
    assert check_starts(live_config().variant("without-z")) == [19]


def test_answers_of_another_model_are_refused(model):
    other = live_model(backbone=None, d_feature=10)
    with pytest.raises(EngineError, match="another model"):
        compare(EagerEngine(model), answers(EagerEngine(other)))


def test_an_unknown_engine_is_refused_with_the_known_ones(model):
    with pytest.raises(SessionError, match="choose one of: auto, eager, compiled, onnx, onnx-int8"):
        open_engine(model, "onyx")


@pytest.fixture
def without_tracing(exported, monkeypatch):
    """Exports take the graphs made once for all tests."""
    from surgicalmamba.engines import export as module

    real = module.export
    monkeypatch.setattr(
        module,
        "export",
        lambda model, out, **options: real(model, out, **{**options, "graphs_from": exported}),
    )


def test_onnx_opens_from_the_cache_the_second_time_and_mends_a_broken_one(model, without_tracing, own_cache):
    said = []
    assert open_engine(model, "onnx", notify=said.append).name == "onnx" and len(said) == 1
    assert open_engine(model, "onnx", notify=said.append).name == "onnx" and len(said) == 1
    (kept,) = own_cache.glob("exports/*/fp32/step.onnx")
    kept.write_bytes(b"nonsense")
    assert open_engine(model, "onnx", notify=said.append).name == "onnx" and len(said) == 2
    assert open_engine(model, "onnx-int8", notify=said.append).name == "onnx-int8"


def test_auto_takes_the_fastest_that_agrees_and_remembers_it(model, without_tracing, own_cache, monkeypatch):
    measured = []

    def onnx_wins(opened):
        measured.append(sorted(opened))
        return {"eager": [90.0, 95.0, 91.0], "onnx": [30.0, 33.0, 31.0]}

    monkeypatch.setattr(engines, "frame_times_ms", onnx_wins)
    assert isinstance(open_engine(model, "auto"), OnnxEngine)
    assert isinstance(open_engine(model, "auto"), OnnxEngine)
    assert measured == [["eager"], ["eager", "onnx"]]
    (choice,) = own_cache.glob("engine-*.json")
    choice.write_text("{broken")
    assert isinstance(open_engine(model, "auto"), OnnxEngine)
    assert len(measured) == 4


def test_auto_prepares_nothing_when_eager_is_fast_enough(model, own_cache, monkeypatch):
    monkeypatch.setattr(
        engines, "frame_times_ms", lambda opened: {"eager": [500.0, 12.0, 480.0]}
    )  # fast, on a busy machine
    monkeypatch.setattr(engines, "build", lambda *_: pytest.fail("another engine was prepared"))
    assert type(open_engine(model, "auto")) is EagerEngine


def test_auto_falls_back_to_eager_and_says_why_when_the_others_are_refused(model, monkeypatch):
    said = []
    monkeypatch.setattr(engines, "FAST_ENOUGH_MS", 0.0)
    monkeypatch.setattr(engines, "build", lambda *_: Broken(model, "logits"))
    assert type(open_engine(model, "auto", notify=said.append)) is EagerEngine
    assert any("onnx is left out" in line and "refused" in line for line in said)


def test_a_short_measurement_times_every_engine(model):
    times = engines.frame_times_ms(
        {"a": EagerEngine(model), "b": EagerEngine(live_model(backbone=None, d_feature=10))}
    )
    assert set(times) == {"a", "b"} and all(value > 0 for values in times.values() for value in values)


def test_a_choice_is_kept_by_model_and_setting_and_only_known_names_are_read(model):
    changed = live_model()
    with torch.no_grad():
        changed.norm.bias[3] += 1e-3
    prints = fingerprint(model), fingerprint(changed)
    assert (
        prints[0] == fingerprint(live_model())
        and prints[0] != prints[1]
        and export_key(prints[0]) != export_key(prints[1])
    )
    keys = {
        setting_key(prints[0], "cpu", 1),
        setting_key(prints[0], "cpu", 2),
        setting_key(prints[0], "cuda:0", 1),
    }
    assert len(keys) == 3
    key = keys.pop()
    write_choice(key, "onnx", {"onnx": 1.0})
    assert read_choice(key, ("eager", "onnx")) == "onnx" and read_choice(key, ("eager", "compiled")) is None
