"""`study mqar`: variants on the same data, learning, interruption, choice of the rate, what is written."""

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
from surgicalmamba.report.sections import circumstances
from surgicalmamba_lab.studies.mqar import (
    CellResult,
    Recall,
    draw_recall,
    final_runs,
    gather_recall,
    rate_runs,
    recall_section,
    recall_table,
    train_all,
    write_recall,
)
from surgicalmamba_lab.studies.mqar_task import PRESETS, VARIANTS, Cell, MqarConfig, preset_config
from surgicalmamba_lab.studies.mqar_train import (
    Progress,
    RecallModel,
    RecallRun,
    build,
    rate_share,
    train_run,
    training_batch,
)

CELL = Cell(64, 64, 8, 16)
STEPS = {"warmup_updates": 4, "min_updates": 24, "max_updates": 24, "save_every": 3, "compile": False}
TINY = MqarConfig(
    cells=(CELL.name,),
    rates=(1e-3,),
    rank=2,
    batch_tokens=512,
    examples=32,
    rate_seeds=1,
    test_examples=16,
    **STEPS,
)


def run_of(variant="content", config=TINY, cell=CELL, rate=1e-3, seed=0):
    return RecallRun(config, cell, variant, rate, seed)


def test_the_full_preset_is_the_papers_protocol():
    full = PRESETS["full"]
    sizes = full.sizes()
    assert {cell.length for cell in sizes} == {256, 512, 1024} and {cell.d_state for cell in sizes} == {
        16,
        64,
    }
    assert {cell.d_model for cell in sizes} == {32, 64, 128} and len(sizes) == 18
    assert {cell.vocabulary for cell in sizes} == {8192} and full.n_layers == 2
    assert all(full.path(cell, "content").chunk_len == cell.length // 4 for cell in sizes)
    assert {full.batch(cell) * cell.length for cell in sizes} == {2**18}
    few = run_of(config=full.with_(batch_tokens=2048, examples=8), cell=Cell(256, 8192, 16, 32))
    assert [training_batch(few, dataset).places.shape[1] for dataset in range(4)] == [8, 16, 32, 64]


def test_the_rotation_adds_the_few_percent_of_weights_that_the_paper_reports():
    full = PRESETS["full"]
    for cell in (cell for cell in full.sizes() if cell.length == 256):
        plain, rotated = (
            sum(p.numel() for p in build(run_of(v, full, cell))[0].parameters()) for v in ("plain", "content")
        )
        assert 1.01 <= rotated / plain <= 1.045


def test_a_cell_is_read_from_its_name():
    assert (
        Cell.parse("T128-V256-N4-d32") == Cell(128, 256, 4, 32)
        and Cell(128, 256, 4, 32).name == "T128-V256-N4-d32"
    )
    assert Cell(128, 256, 4, 32).n_pairs == 32


def test_all_variants_see_the_same_batches_and_a_finite_dataset_repeats():
    plain, rotated = run_of("plain"), run_of("content")
    for update in range(32):
        a, b, again = (
            training_batch(plain, update),
            training_batch(rotated, update),
            training_batch(plain, update + 16),
        )
        assert (
            (a.tokens == b.tokens).all() and (a.places == b.places).all() and (a.tokens == again.tokens).all()
        )
    assert [training_batch(plain, update).places.shape[1] for update in range(8)] == [2, 4, 8, 16] * 2
    endless = run_of("plain", TINY.with_(examples=None, pair_shares=(4,)))
    drawn = {training_batch(endless, update).tokens.tobytes() for update in range(64)}
    assert len(drawn) == 64 and training_batch(endless, 5).places.shape[1] == 16


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_causal_and_learns_with_all_of_its_weights(variant):
    model = build(run_of(variant))[0]
    batch = training_batch(run_of(), 3)
    tokens, everywhere = torch.from_numpy(batch.tokens), torch.arange(64).expand(len(batch.tokens), 64)
    whole = model(tokens, everywhere)
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 64
    torch.testing.assert_close(model(changed, everywhere)[:, :40], whole[:, :40])
    model(tokens, torch.from_numpy(batch.places)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def logged(losses, recalls=None):
    """A run that has seen 64 updates for each of these losses."""
    recalls = recalls or [10.0] * len(losses)
    return Progress(
        64 * len(losses),
        log=[[64.0 * (i + 1), loss, r] for i, (loss, r) in enumerate(zip(losses, recalls, strict=True))],
    )


def test_training_ends_when_the_loss_is_flat_or_recall_is_solved_and_not_in_the_stretch_before_the_jump():
    config = TINY.with_(min_updates=512, max_updates=2048, flat_window=256)
    flat, falling = [4.0] * 8, [4.0] * 8 + [3.0, 2.9, 2.8, 2.7]
    assert not logged(flat[:7]).should_stop(config)  # 448 updates: the jump may still come
    assert logged(flat).should_stop(config)
    assert not logged(falling).should_stop(config)
    assert not logged([*falling, *[2.75] * 4]).should_stop(config)  # 2.75 against a mean of 2.85 before
    assert logged([*falling, *[2.75] * 8]).should_stop(config)
    assert logged([4.0] * 4, [1.0, 5.0, 60.0, 99.5]).should_stop(config)
    assert logged([4.0 - 0.1 * i for i in range(32)]).should_stop(config)  # enough updates


def test_the_rate_rises_stays_and_falls_to_zero_over_a_quarter_of_the_updates_before():
    config = TINY.with_(warmup_updates=4, decay_share=0.25)
    rising = [rate_share(Progress(update), config) for update in range(6)]
    assert rising == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Progress(8, stopped_at=8).end(config) == 10
    assert [rate_share(Progress(update, stopped_at=8), config) for update in (8, 9)] == [1.0, 0.5]


def test_both_variants_of_a_seed_begin_with_the_same_weights():
    plain, rotated = (dict(build(run_of(variant))[0].named_parameters()) for variant in ("plain", "content"))
    assert all(torch.equal(rotated[name], value) for name, value in plain.items())
    assert {name.split(".")[3] for name in rotated.keys() - plain.keys()} == {"rotator"}


def test_logits_at_the_questions_are_those_of_the_whole_sequence():
    model = build(run_of())[0]
    batch = training_batch(run_of(), 0)
    tokens, places = torch.from_numpy(batch.tokens), torch.from_numpy(batch.places)
    everywhere = torch.arange(64).expand(len(tokens), 64)
    whole = model(tokens, everywhere)
    asked = torch.take_along_dim(whole, places[..., None], dim=1)
    assert torch.allclose(model(tokens, places), asked, atol=1e-6)


def test_a_tiny_cell_learns_above_chance(tmp_path):
    cell = Cell(32, 32, 8, 32)
    config = TINY.with_(
        cells=(cell.name,),
        d_head=16,
        batch_tokens=1024,
        examples=512,
        min_updates=256,
        max_updates=256,
        test_examples=128,
    )
    result = train_run(run_of("plain", config, cell, rate=1e-2), tmp_path)
    chance = 100 / 16  # sixteen values; 1024 questions, so chance has a deviation of 0.8
    assert result["accuracy"] > chance + 4


def test_stopped_anywhere_a_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    straight = train_run(run_of(), tmp_path / "a")
    import surgicalmamba_lab.studies.mqar_train as module

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
    assert len(calls) == 8 + (30 - 6)  # 24 updates and 6 in which the rate falls, from the state after six
    same = ("accuracy_by_batch", "chosen_by", "log", "updates", "updates_to_half", "parameters")
    assert [resumed[key] for key in same] == [straight[key] for key in same]


def test_killed_in_the_middle_the_same_call_ends_with_the_numbers_of_a_whole_one(tmp_path):
    sizes = ["cells=[T64-V64-N8-d16]", "rates=[0.003]", "rate_seeds=1", "variants=[plain,content]", "rank=2"]
    steps = [
        "batch_tokens=512",
        "min_updates=120",
        "max_updates=120",
        "test_examples=16",
        "save_every=5",
        "compile=false",
    ]
    call = [sys.executable, "-m", "surgicalmamba", "study", "mqar", *sizes, *steps, "--seeds", "1"]
    out = tmp_path / "killed"
    first = subprocess.Popen(
        [*call, "--out", str(out)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(out.glob("cells/*/states/000000[1-9]?/state.json")):
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert len(list(out.glob("cells/*/result.json"))) < 2  # something was left to do
    said = json.loads(
        subprocess.run(
            [*call, "--out", str(out), "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    config = preset_config("plateau", [*sizes, *steps])
    for variant in ("plain", "content"):
        straight = train_run(run_of(variant, config, rate=3e-3), tmp_path / "whole")
        assert said["cells"]["T64-V64-N8-d16"][variant]["accuracy_by_seed_and_batch"] == [
            straight["accuracy_by_batch"]
        ]
    assert (out / "mqar.png").is_file() and (out / "mqar.svg").is_file()


def fake_result(run, out, chosen_by, accuracy):
    folder = run.folder(out)
    folder.mkdir(parents=True)
    found = {
        "settings": run.settings(),
        "parameters": 1000,
        "chosen_by": chosen_by,
        "accuracy_by_batch": [accuracy, accuracy],
    }
    found |= {"seconds": 60.0, "updates": 100, "updates_to_half": None}
    (folder / "result.json").write_text(json.dumps(found))


def test_a_rate_is_chosen_by_one_set_of_examples_and_reported_on_another(tmp_path):
    config = TINY.with_(rates=(1e-3, 1e-2))
    choose = {("plain", 1e-3): 50.0, ("plain", 1e-2): 40.0, ("content", 1e-3): 10.0, ("content", 1e-2): 60.0}
    report = {("plain", 1e-3): 48.0, ("plain", 1e-2): 99.0, ("content", 1e-3): 99.0, ("content", 1e-2): 58.0}
    for run in rate_runs(config, 1):
        fake_result(run, tmp_path, choose[run.variant, run.rate], report[run.variant, run.rate])
    (found,) = gather_recall(config, 1, tmp_path)
    plain, rotated = found.rows
    assert (plain.rate, rotated.rate) == (1e-3, 1e-2)
    assert (plain.mean, rotated.mean, found.gain(rotated).difference) == (48.0, 58.0, 10.0)
    assert found.gain(rotated).standing == "no verdict"  # one seed


def test_seeds_beyond_those_that_choose_are_trained_at_the_chosen_rate_only(tmp_path):
    config = TINY.with_(rates=(1e-3, 1e-2), rate_seeds=2)
    trials = rate_runs(config, 5)
    assert len(trials) == 2 * 2 * 2 and {run.seed for run in trials} == {0, 1}
    for run in trials:
        fake_result(run, tmp_path, 100 * run.rate * (1 if run.variant == "plain" else -1), 1.0)
    others = final_runs(config, 5, tmp_path)
    assert {(run.variant, run.rate, run.seed) for run in others} == {
        *(("plain", 1e-2, seed) for seed in (2, 3, 4)),
        *(("content", 1e-3, seed) for seed in (2, 3, 4)),
    }


def test_a_run_at_a_rate_where_the_loss_is_no_number_counts_as_zero(tmp_path, monkeypatch):
    import surgicalmamba_lab.studies.mqar_train as module

    monkeypatch.setattr(module, "_step", lambda *_: (float("nan"), 0.0))
    result = train_run(run_of(), tmp_path)
    assert (result["finite"], result["accuracy"], result["updates"]) == (False, 0.0, 1)
    assert json.loads((run_of().folder(tmp_path) / "result.json").read_text())["accuracy"] == 0.0


def test_a_folder_made_with_other_settings_is_refused_and_a_wider_study_is_not(tmp_path):
    fake_result(run_of(), tmp_path, 1.0, 1.0)
    with pytest.raises(StudyError, match=r"was made with min_updates=24, not 23; give another --out"):
        run_of(config=TINY.with_(min_updates=23)).result(tmp_path)
    assert (
        run_of(config=TINY.with_(cells=(CELL.name, "T64-V64-N8-d32"), rates=(1e-3, 1e-2))).result(tmp_path)
        is not None
    )


def test_an_unfinished_study_says_which_run_is_missing(tmp_path):
    with pytest.raises(StudyError, match=r"T64-V64-N8-d16-plain-lr0.001-seed0 has no result yet"):
        gather_recall(TINY, 1, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("cells=[T100-V64-N4-d32]", "100 is no multiple of 32"),
        ("cells=[T64-V16-N4-d32]", "too few keys for 16 pairs"),
        ("cells=[T64-N4]", "write length, vocabulary, state and width like"),
        ("pair_shares=[4,8]", "must end with 4"),
        ("min_updates=200000", "larger than max_updates"),
        ("celsl=[32]", "did you mean 'cells'"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(wrong, message):
    with pytest.raises(ConfigError, match=message):
        preset_config("plateau", ["pair_shares=[32,16,8,4]", wrong])
    with pytest.raises(ConfigError, match="presets: plateau, paper-cell, full"):
        preset_config("small", [])


def recall(variant, accuracy, parameters, to_half=(500, None, 700)):
    by_batch = np.array(accuracy)[:, None] + np.array([-1.0, 0.0, 1.0])
    return Recall(
        Cell(64, 64, 4, 32),
        variant,
        1e-3,
        by_batch,
        (1000,) * len(accuracy),
        to_half,
        {1e-3: 50.0},
        parameters,
        2.0,
    )


def test_gains_have_intervals_over_seeds_and_the_words_that_these_allow(tmp_path):
    plain = recall("plain", (40.0, 50.0, 45.0), 1000)
    better = recall("content", (60.0, 70.0, 65.0), 1030)
    scattered = recall("constant", (30.0, 75.0, 45.0), 1010, to_half=(None, None, 700))
    found = CellResult((plain, better, scattered))
    assert found.gain(better).difference == pytest.approx(20.0) and found.gain(better).standing == "ahead"
    assert (
        found.gain(scattered).difference == pytest.approx(5.0)
        and found.gain(scattered).standing == "no difference shown"
    )
    rows = recall_table([found])
    assert rows[1][:4] == ["T64-V64-N4-d32", "16", "plain", "45.00 ± 5.00"] and rows[1][6] == "700"
    assert rows[2][2] == "content" and rows[2][5] == "ahead" and rows[2][9] == "1,030 (+3.0 %)"
    assert rows[3][6] == "never"
    assert "over seeds and test sequences together" in recall_section(
        "MQAR", [found], 3, circumstances("a command")
    )
    document = json.loads(write_recall([found], TINY, 3, tmp_path, circumstances("a command")).read_text())
    assert document["cells"]["T64-V64-N4-d32"]["content"]["gain"]["difference"] == pytest.approx(20.0)


def test_a_cell_that_is_solved_or_not_learned_is_called_no_contest():
    assert (
        recall_table([CellResult((recall("plain", (99.0, 98.0, 97.0), 1),))])[1][5]
        == "nearly solved: no contest"
    )
    assert (
        recall_table([CellResult((recall("plain", (9.0, 8.0, 7.0), 1),))])[1][5]
        == "hardly learned: no contest"
    )


def test_the_figure_has_a_panel_for_each_cell_and_a_dot_for_each_seed():
    cells = [
        CellResult((recall("plain", (40.0, 41.0, 42.0), 1000), recall("content", (43.5, 44.0, 45.0), 1030)))
        for _ in range(2)
    ]
    panels = draw_recall(cells).axes
    assert len(panels) == 2
    assert [len(line.get_xdata()) for line in panels[0].lines] == [3, 3]
    assert panels[0].texts[0].get_text().startswith("+3.2")
    assert [tick.get_text() for tick in panels[0].get_xticklabels()] == ["plain", "content"]


def test_runs_are_trained_once_and_an_error_of_one_ends_the_study(tmp_path):
    runs = rate_runs(TINY.with_(min_updates=4, max_updates=4), 1)
    seen = []
    train_all(runs, tmp_path, 1, seen.append)
    assert seen == [1, 2]
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
