"""`study mqar`: both variants on the same data, learning, interruption, choice of the rate, what is written."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from surgicalmamba.errors import ConfigError, StudyError
from surgicalmamba.studies.mqar import Pair, Recall, gather_recall, recall_runs, train_all, write_recall
from surgicalmamba.studies.mqar_config import PRESETS, Cell, MqarConfig, preset_config
from surgicalmamba.studies.mqar_model import RecallModel
from surgicalmamba.studies.mqar_report import draw_recall, recall_section
from surgicalmamba.studies.mqar_train import RecallRun, build, train_run, training_batch
from surgicalmamba.studies.results import circumstances

CELL = Cell(64, 8, 16)
SIZES = {"lengths": (64,), "states": (8,), "widths": (16,), "vocabulary": 64, "rates": (1e-3,), "rank": 2}
TINY = MqarConfig(**SIZES, batch_tokens=512, examples=32, cycles=2, test_examples=16, save_every=3)


def run_of(variant="rotated", config=TINY, cell=CELL, rate=1e-3, seed=0):
    return RecallRun(config, cell, variant, rate, seed)


def test_the_full_preset_is_the_papers_protocol():
    full = PRESETS["full"]
    assert (full.lengths, full.states, full.widths) == ((256, 512, 1024), (16, 64), (32, 64, 128))
    assert (full.vocabulary, full.n_layers) == (8192, 2)
    assert all(full.path(cell, "rotated").chunk_len == cell.length // 4 for cell in full.cells())
    assert {cell.length: full.batch(cell) * cell.length for cell in full.cells()} == {256: 2**18, 512: 2**18, 1024: 2**18}
    few = run_of(config=full.with_(batch_tokens=2048, examples=8), cell=Cell(256, 16, 32))
    assert [training_batch(few, dataset).places.shape[1] for dataset in range(4)] == [8, 16, 32, 64]


def test_the_rotation_adds_the_few_percent_of_weights_that_the_paper_reports():
    full = PRESETS["full"]
    for cell in (cell for cell in full.cells() if cell.length == 256):
        plain, rotated = (sum(p.numel() for p in build(run_of(v, full, cell))[0].parameters()) for v in ("plain", "rotated"))
        assert 1.01 <= rotated / plain <= 1.045


def test_both_variants_see_the_same_batches_and_every_cycle_repeats_them():
    plain, rotated = run_of("plain"), run_of("rotated")
    n = TINY.updates(CELL)
    assert n == 2 * 4 * 4  # two cycles of four datasets of four batches
    for update in range(n):
        a, b, again = training_batch(plain, update), training_batch(rotated, update), training_batch(plain, (update + n // 2) % n)
        assert (a.tokens == b.tokens).all() and (a.places == b.places).all() and (a.tokens == again.tokens).all()
    pairs = [training_batch(plain, update).places.shape[1] for update in range(n // 2)]
    assert pairs == [2, 4, 8, 16] * 4


def test_both_variants_of_a_seed_begin_with_the_same_weights():
    plain, rotated = (dict(build(run_of(variant))[0].named_parameters()) for variant in ("plain", "rotated"))
    assert all(torch.equal(rotated[name], value) for name, value in plain.items())
    assert {name.split(".")[3] for name in rotated.keys() - plain.keys()} == {"rotator"}


def test_logits_at_the_questions_are_those_of_the_whole_sequence_and_come_from_the_past_alone():
    model = build(run_of())[0]
    batch = training_batch(run_of(), 0)
    tokens, places = torch.from_numpy(batch.tokens), torch.from_numpy(batch.places)
    everywhere = torch.arange(64).expand(len(tokens), 64)
    whole = model(tokens, everywhere)
    asked = torch.take_along_dim(whole, places[..., None], dim=1)
    assert torch.allclose(model(tokens, places), asked, atol=1e-6)
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 64
    assert torch.equal(model(changed, everywhere)[:, :40], whole[:, :40])


def test_the_rotation_is_reached_by_every_chunk_and_is_trained():
    model = build(run_of())[0]
    batch = training_batch(run_of(), 0)
    model(torch.from_numpy(batch.tokens), torch.from_numpy(batch.places)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_tiny_cell_learns_above_chance(tmp_path):
    config = TINY.with_(lengths=(32,), vocabulary=32, d_head=16, batch_tokens=1024, examples=512, cycles=5, test_examples=128)
    result = train_run(run_of("plain", config, Cell(32, 8, 32), rate=1e-2), tmp_path)
    chance = 100 / 16  # sixteen values; 1024 questions, so chance has a deviation of 0.8
    assert result["accuracy"] > chance + 4


def test_stopped_anywhere_a_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    straight = train_run(run_of(), tmp_path / "a")
    import surgicalmamba.studies.mqar_train as module

    real, calls = module._step, []

    def stop_after_seven(*arguments):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "_step", stop_after_seven)
    with pytest.raises(KeyboardInterrupt):
        train_run(run_of(), tmp_path / "b")
    resumed = train_run(run_of(), tmp_path / "b")
    assert len(calls) == 8 + (32 - 6)  # from the state after six updates
    same = ("accuracy", "chosen_by", "log", "updates", "parameters")
    assert [resumed[key] for key in same] == [straight[key] for key in same]


def test_killed_in_the_middle_the_same_call_ends_with_the_numbers_of_a_whole_one(tmp_path):
    sizes = ["lengths=[64]", "states=[8]", "widths=[16]", "vocabulary=64", "rates=[0.003]", "rank=2"]
    steps = ["batch_tokens=512", "examples=96", "cycles=2", "test_examples=16", "save_every=5"]
    call = [sys.executable, "-m", "surgicalmamba", "study", "mqar", *sizes, *steps, "--seeds", "1"]
    out = tmp_path / "killed"
    first = subprocess.Popen([*call, "--out", str(out)], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("cells/*/states/000000[1-9]?/state.json")):
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert len(list(out.glob("cells/*/result.json"))) < 2  # something was left to do
    said = json.loads(subprocess.run([*call, "--out", str(out), "--json"], capture_output=True, text=True, check=True).stdout)
    config = preset_config("scaled", [*sizes, *steps])
    for variant in ("plain", "rotated"):
        straight = train_run(run_of(variant, config, rate=3e-3), tmp_path / "whole")
        assert said["cells"]["T64-N8-d16"][variant]["accuracy_by_seed"] == [straight["accuracy"]]
    assert (out / "mqar.png").is_file() and (out / "mqar.svg").is_file()


def fake_result(run, out, chosen_by, accuracy):
    folder = run.folder(out)
    folder.mkdir(parents=True)
    found = {"settings": run.settings(), "parameters": 1000, "chosen_by": chosen_by, "accuracy": accuracy, "seconds": 60.0}
    (folder / "result.json").write_text(json.dumps(found))


def test_a_rate_is_chosen_by_one_set_of_examples_and_reported_on_another(tmp_path):
    config = TINY.with_(rates=(1e-3, 1e-2))
    choose = {("plain", 1e-3): 50.0, ("plain", 1e-2): 40.0, ("rotated", 1e-3): 10.0, ("rotated", 1e-2): 60.0}
    report = {("plain", 1e-3): 48.0, ("plain", 1e-2): 99.0, ("rotated", 1e-3): 99.0, ("rotated", 1e-2): 58.0}
    for run in recall_runs(config, 1):
        fake_result(run, tmp_path, choose[run.variant, run.rate], report[run.variant, run.rate])
    (pair,) = gather_recall(config, 1, tmp_path)
    assert (pair.plain.rate, pair.rotated.rate) == (1e-3, 1e-2)
    assert (pair.plain.mean, pair.rotated.mean, pair.gain) == (48.0, 58.0, 10.0)


def test_a_run_at_a_rate_where_the_loss_is_no_number_counts_as_zero(tmp_path, monkeypatch):
    import surgicalmamba.studies.mqar_train as module

    monkeypatch.setattr(module, "_step", lambda *_: float("nan"))
    result = train_run(run_of(), tmp_path)
    assert (result["finite"], result["accuracy"], result["updates"]) == (False, 0.0, 1)
    assert json.loads((run_of().folder(tmp_path) / "result.json").read_text())["accuracy"] == 0.0


def test_a_folder_made_with_other_settings_is_refused_and_a_wider_study_is_not(tmp_path):
    fake_result(run_of(), tmp_path, 1.0, 1.0)
    with pytest.raises(StudyError, match=r"was made with cycles=2, not 3; give another --out"):
        run_of(config=TINY.with_(cycles=3)).result(tmp_path)
    assert run_of(config=TINY.with_(widths=(16, 32), rates=(1e-3, 1e-2))).result(tmp_path) is not None


def test_an_unfinished_study_says_which_run_is_missing(tmp_path):
    with pytest.raises(StudyError, match=r"T64-N8-d16-plain-lr0.001-seed0 has no result yet"):
        gather_recall(TINY, 1, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("lengths=[100]", "100 is no multiple of 32"),
        ("vocabulary=16", "too few keys for 16 pairs"),
        ("wdths=[32]", "did you mean 'widths'"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(wrong, message):
    with pytest.raises(ConfigError, match=message):
        preset_config("scaled", ["lengths=[64]", wrong])
    with pytest.raises(ConfigError, match="presets: full, scaled"):
        preset_config("small", [])


def recall(variant, accuracy, parameters, width=32):
    return Recall(Cell(64, 16, width), variant, 1e-3, accuracy, {1e-3: 50.0}, parameters, 2.0)


def test_gains_are_taken_seed_by_seed_and_shown_with_their_range(tmp_path):
    pairs = [Pair(recall("plain", (40.0, 50.0), 1000), recall("rotated", (43.0, 51.0), 1030))]
    assert pairs[0].gains == (3.0, 1.0) and pairs[0].gain == 2.0 and pairs[0].more_weights == pytest.approx(3.0)
    section = recall_section("MQAR", pairs, 2, circumstances("a command"))
    assert "| 64 | 16 | 16 | 32 | 45.00 ± 7.07 | 47.00 ± 5.66 | +2.00 (+1.00 to +3.00) | 0.001, 0.001 | 1,000 | 3.0 % |" in section
    document = json.loads(write_recall(tmp_path, TINY, pairs, circumstances("a command")).read_text())
    assert document["cells"]["T64-N16-d32"]["gain_by_seed"] == [3.0, 1.0]


def test_the_figure_has_a_line_for_each_state_and_variant_and_names_every_gain():
    pairs = [Pair(recall("plain", (40.0,), 1000, width), recall("rotated", (43.5,), 1030, width)) for width in (32, 64)]
    (axes,) = draw_recall(pairs).axes
    assert [text.get_text() for text in axes.texts] == ["+3.5", "+3.5"]
    assert axes.get_legend_handles_labels()[1] == ["N = 16, without Z", "N = 16, with Z"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["32", "64"]


def test_runs_are_trained_once_and_an_error_of_one_ends_the_study(tmp_path):
    runs = recall_runs(TINY.with_(cycles=1), 1)
    seen = []
    train_all(runs, tmp_path, 1, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    stamps = [file.stat().st_mtime_ns for file in sorted(tmp_path.glob("cells/*/result.json"))]
    train_all(runs, tmp_path, 1)
    assert [file.stat().st_mtime_ns for file in sorted(tmp_path.glob("cells/*/result.json"))] == stamps
    (tmp_path / "b" / "cells").mkdir(parents=True)
    (tmp_path / "b" / "cells" / runs[0].name).write_text("in the way")
    with pytest.raises(Exception, match=runs[0].name):
        train_all(runs, tmp_path / "b", 1)


def test_the_model_is_the_projects_own_path_and_nothing_else_mixes_tokens():
    model = RecallModel(64, 16, 2, TINY.path(CELL, "plain"), 64, 0.02)
    names = {name.split(".")[2] for name, _ in model.named_parameters() if name.startswith("layers.")}
    assert names == {"norm", "slow", "out_norm", "out_proj"}
    assert np.prod(model.embedding.weight.shape) == 64 * 16
