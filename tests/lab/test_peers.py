"""`study peers`: the same sweep and seeds for every network, its cost beside its score."""

import json
import re
from dataclasses import replace

import pytest
import torch

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.protocols import PROTOCOLS
from surgicalmamba.model.registry import BUILT_IN, build
from surgicalmamba.peers.conformance import state_bytes
from surgicalmamba.train.config import TrainConfig
from surgicalmamba_lab.studies import peers as study_peers
from surgicalmamba_lab.studies.ablation import AblationPlan
from surgicalmamba_lab.studies.peers import (
    StepCost,
    at_the_ends,
    draw_tradeoff,
    lengthened,
    peer_systems,
    run_peers,
    step_costs,
    study_settings,
    summary,
    write_peers,
)
from surgicalmamba_lab.studies.peers_overview import read_overview


def test_every_network_gets_the_same_recipe_and_clips_but_for_its_name_and_widths(recipe):
    systems = peer_systems(recipe)
    assert [system.name for system in systems] == list(BUILT_IN)
    alike = {
        "recognizer": "surgicalmamba",
        "validate_every": 1,
    }  # whether the epochs are looked at changes no weight
    assert len({system.config.with_(**alike).model_dump_json() for system in systems}) == 1
    for system in systems[1:]:
        network = system.config.for_network(
            system.name, **study_settings(system.name, recipe), backbone=None, d_feature=5
        )
        assert network.network.feature_width == 5  # sizes are settings that the network has
        assert network.network.clip_len == recipe.network.clip_len
    with pytest.raises(ConfigError, match="did you mean 'tecno'"):
        peer_systems(recipe, ["surgicalmamba", "teckno"])
    with pytest.raises(ConfigError, match="at least two"):
        peer_systems(recipe, ["tecno"])


def test_rates_are_swept_alike_and_every_network_is_scored_under_every_protocol(
    recipe, toy, here, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        study_peers,
        "step_costs",
        lambda model: step_costs(model, lengths=(100, 2_000, 6_000, 20_000), steps=2, turns=1),
    )
    plan = AblationPlan(recipe, ("hmm", "lstm"), 2, None, None, (1e-3, 1e-2), 1)
    study = run_peers(plan, toy, tmp_path, here, with_published=False)
    assert (
        len(here.trained) == 2 * 2 + 2
    )  # both rates of both networks with seed 0, then seed 1 at the better one
    assert {name: set(scores) for name, scores in study.scores.rate_scores.items()} == {
        "hmm": {1e-3, 1e-2},
        "lstm": {1e-3, 1e-2},
    }
    page = tmp_path / "results.md"
    file = write_peers(
        study,
        tmp_path,
        {
            "date": "d",
            "version": "v",
            "commit": None,
            "machine": {"system": "s", "machine": "m", "cores": 1},
            "command": "c",
        },
        page,
        None,
    )
    results = json.loads(file.read_text())
    assert set(results["rows"]) == {"hmm", "lstm"} and results["memory"] == {"hmm": "O(1)", "lstm": "O(1)"}
    assert (
        set(results["rows"]["hmm"]["protocols"]) <= set(PROTOCOLS)
        and "strict" in results["rows"]["hmm"]["protocols"]
    )
    assert [cost["frames"] for cost in results["step_costs"]["lstm"]] == [100, 2_000, 6_000, 20_000]
    text = page.read_text()
    assert (
        "| lstm | O(1) |" in text
        and "learning rate" in text
        and "| ms at 20,000 | p95 at 20,000 | times hmm at 20,000 |" in text
    )
    reached = results["learning_rates"]["strict_jaccard"]["hmm"]
    assert f"| hmm | {reached['0.001']:.2f} | {reached['0.01']:.2f} |" in text
    assert (
        f"| hmm | {results['rows']['hmm']['protocols']['strict']['precision']['mean']:.2f} | " in text
    )  # the table of other protocols
    for protocol in results["rows"]["hmm"]["protocols"]:
        assert f", {protocol} |" in text
    assert "suit them better: hmm, lstm." in text  # two rates have no middle
    assert all(
        target.startswith("images/") for target in re.findall(r"\]\(([^)]+)\)", text)
    )  # the page may lie anywhere
    assert set(read_overview([tmp_path]).networks) == {"hmm", "lstm"}  # what is written can be read again
    figure = draw_tradeoff(study)
    strict = {name: row["protocols"]["strict"]["jaccard"]["mean"] for name, row in results["rows"].items()}
    ranked = sorted(strict, key=lambda name: -strict[name])
    assert [text.get_text() for text in figure.legends[0].texts] == [
        f"{strict[name]:.1f}  {name}" for name in ranked
    ]
    marks = {tuple(point[0].get_xydata()[0]) for point in figure.axes[0].containers}
    assert marks == {(results["step_costs"][name][2]["frame_ms"], strict[name]) for name in strict}
    assert (tmp_path / "tradeoff.svg").is_file() and "images/peers-toy-split-usual-tradeoff.png" in text
    assert (tmp_path / "peers.png").stat().st_size > 10_000 and len(summary(study).splitlines()) == 3


def test_a_rate_without_a_neighbour_on_one_side_is_told():
    scores = {
        "low": {1e-3: 9.0, 4e-3: 8.0, 1e-2: 7.0},
        "inside": {1e-3: 7.0, 4e-3: 8.0, 1e-2: 7.0},
        "high": {1e-3: 1.0, 1e-2: 3.0},
    }
    assert at_the_ends(scores) == ["low", "high"] and at_the_ends({}) == []


def test_a_network_that_rescans_its_past_is_not_validated_in_training():
    recipe = TrainConfig(recognizer={"preset": "tiny"}, epochs=7)
    looks = {
        system.name: system.config.validate_every
        for system in peer_systems(recipe, ["lstm", "sr-mamba", "sr-mamba-forward"])
    }
    assert looks == {"lstm": 1, "sr-mamba": None, "sr-mamba-forward": 1}


@pytest.mark.parametrize("name", ["opera", "tecno", "dacat", "sr-mamba"])
def test_a_memory_made_for_a_length_has_the_size_of_one_that_was_lived_through(name):
    settings = {
        "opera": {"d_model": 8, "n_layers": 2, "d_hidden": 8},
        "dacat": {"d_hidden": 8, "cache_len": 150},
        "tecno": {"n_layers": 3},
    }
    prefix = {"d_model": 8, "n_blocks": 1, "path": {"rotation": None, "d_state": 4, "d_head": 8}}
    model = build(name, 4, 3, **settings.get(name, prefix))
    made = [cost.state_bytes for cost in step_costs(model, lengths=(20, 90, 300), steps=2, turns=1)]
    with torch.no_grad():
        assert made == list(state_bytes(model.eval(), (20, 90, 300)))


def test_what_does_not_grow_is_left_as_it_was_and_the_clock_is_set():
    model = build("lstm", 4, 3, d_hidden=4)
    state = replace(model.initial_state(1), hidden=torch.ones(1, 4))
    longer = lengthened(state, 500)
    assert longer.frame_index == (500,) and torch.equal(longer.hidden, state.hidden)


def test_a_step_is_timed_at_every_length():
    costs = step_costs(build("lstm", 4, 3, d_hidden=4), lengths=(10, 50), steps=3, turns=1)
    assert [cost.frames for cost in costs] == [10, 50]
    assert all(isinstance(cost, StepCost) and 0 < cost.frame_ms <= cost.p95_ms for cost in costs)


def test_a_frame_costs_the_median_turn_and_its_slow_frames_are_told(monkeypatch):
    frames_s = [0.001, 0.003, 0.005, 0.005, 0.001, 0.001]  # three turns of two frames: means of 2, 5 and 1 ms
    ticks = iter([tick for frame in frames_s for tick in (10.0, 10.0 + frame)])
    monkeypatch.setattr("surgicalmamba_lab.studies.peers.time.perf_counter", lambda: next(ticks))
    (cost,) = step_costs(build("lstm", 4, 3, d_hidden=4), lengths=(10,), steps=2, turns=3)
    assert (cost.frame_ms, cost.p95_ms) == pytest.approx((2.0, 5.0))
