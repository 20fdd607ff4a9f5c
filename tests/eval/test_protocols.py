"""Scoring arrays by the name of a protocol."""

import json

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

import surgicalmamba as sm
from eval.vectors import V1, V2, V5, V7, seq
from surgicalmamba.errors import ConfigError, InputError
from surgicalmamba.eval.pairs import make_pair
from surgicalmamba.eval.protocols import PROTOCOLS, resolve_protocols, score_runs, usual_protocol
from surgicalmamba.eval.score import Settings


def mean(score, metric):
    return score[metric]["mean"]


def test_one_video_as_plain_lists():
    score = sm.score([0, 0, 1, 1], [0, 1, 1, 1], n_phases=2)
    assert mean(score, "accuracy") == 75
    assert mean(score, "jaccard") == pytest.approx((50 + 200 / 3) / 2)
    assert score["settings"]["undefined"].startswith("A:")


def test_many_videos_are_averaged_and_their_spread_named():
    score = sm.score([V1[0], V5[0]], [V1[1], V5[1]], n_phases=7)
    assert mean(score, "accuracy") == pytest.approx((93.3333333 + 95) / 2)
    assert score["accuracy"]["std_videos"] == pytest.approx(np.std([93.3333333, 95], ddof=1))
    assert score["settings"]["videos"] == 2
    # Phase 5: undefined in the first video, 0 in the second. Phase 0: 88.24 and 100.
    assert score["per_phase"]["phase 5"]["jaccard"] == {
        "mean": 0,
        "std_videos": 0,
        "std_runs": None,
        "videos": 1,
    }
    assert score["per_phase"]["phase 0"]["jaccard"]["mean"] == pytest.approx((88.2352941 + 100) / 2)


def test_strict_and_strict_b_differ_in_false_alarms_on_missing_phases():
    assert mean(sm.score(*V5, n_phases=7), "jaccard") == pytest.approx(190 / 3)
    assert mean(sm.score(*V5, n_phases=7, protocol="strict-b"), "jaccard") == pytest.approx(95)


def test_the_papers_formula_divides_by_all_phases_and_scores_absent_ones_zero():
    score = sm.score([V5[0], V1[0]], [V5[1], V1[1]], n_phases=7, protocol="paper")
    total = 100 + 90 + 100 * 30 / 34 + 100 * 26 / 30
    assert mean(score, "jaccard") == pytest.approx(total / (7 * 2))
    perfect = sm.score(V1[0], V1[0], n_phases=7, protocol="paper")
    assert mean(perfect, "jaccard") == pytest.approx(100 * 2 / 7)  # even a perfect prediction
    assert "score 0" in perfect["settings"]["absent_phases"]


def test_macro_f1_and_what_some_papers_print_as_f1():
    score = sm.score(*V7, n_phases=7)
    assert score["f1"]["mean_videos"] == pytest.approx(62.962963)
    assert mean(score, "inflated_macro_f1") == pytest.approx(76.595745)
    assert mean(score, "inflated_macro_f1_upper_bound") == pytest.approx(76.595745)


def test_framewise_pools_rows_before_it_divides():
    labels, predictions = [V1[0], V7[0]], [V1[1], V7[1]]
    score = sm.score(labels, predictions, n_phases=7, protocol="framewise")
    truth, predicted = np.concatenate(labels), np.concatenate(predictions)
    present = [0, 1, 2]
    assert mean(score, "accuracy") == pytest.approx(100 * sklearn_metrics.accuracy_score(truth, predicted))
    assert mean(score, "accuracy_by_video") == pytest.approx((93.3333333 + 88.8888889) / 2)
    for metric, oracle in (
        ("precision", sklearn_metrics.precision_score),
        ("recall", sklearn_metrics.recall_score),
    ):
        assert mean(score, metric) == pytest.approx(
            100 * oracle(truth, predicted, labels=present, average="macro")
        )
    assert mean(score, "jaccard") == pytest.approx(
        100 * sklearn_metrics.jaccard_score(truth, predicted, labels=present, average="macro")
    )


def test_relaxed_protocols_state_rules_window_and_rate():
    score = sm.score(*V2, n_phases=7, protocol="relaxed-repaired")
    settings = score["settings"]
    assert (settings["rules"], settings["window_s"], settings["fps"]) == ("cholec80", 10.0, 1.0)
    assert mean(score, "accuracy") == 100
    narrow = sm.score(*V2, n_phases=7, protocol="relaxed-repaired", window_s=2)
    assert mean(narrow, "accuracy") == pytest.approx(100 * 58 / 60)


def test_the_window_is_in_seconds_not_in_rows():
    at_two_rows_per_second = sm.score(*V2, n_phases=7, protocol="relaxed-repaired", fps=2, window_s=1)
    assert mean(at_two_rows_per_second, "accuracy") == pytest.approx(100 * 58 / 60)


def test_the_published_mean_is_undefined_as_in_the_script_when_no_video_has_a_phase_and_says_so():
    score = sm.score(*V1, n_phases=7, protocol="relaxed-published")
    assert score["jaccard"]["mean"] is None
    assert score["jaccard"]["mean_defined_phases"] == 100
    assert score["jaccard"]["std_phases"] is None
    assert score["precision"]["mean"] == 100  # the script leaves undefined phases out of precision only
    assert any("no video contains phase 2" in warning for warning in score["warnings"])
    assert score["per_phase"]["phase 1"]["jaccard"]["mean"] == 100


def test_the_symmetric_protocol_scores_forgiven_rows_as_annotated():
    truth = seq((4, 30), (0, 30))
    score = sm.score(truth, seq((4, 45), (0, 15)), n_phases=11, protocol="relaxed-symmetric")
    assert mean(score, "accuracy") == pytest.approx(100 * 55 / 60)
    # Ten of the fifteen late rows count as phase 0: 30 rows of 4 and 25 of 0 are right, five rows of 0 are
    # called 4.
    assert score["per_phase"]["phase 4"]["jaccard"]["mean"] == pytest.approx(100 * 30 / 35)
    assert score["per_phase"]["phase 0"]["jaccard"]["mean"] == pytest.approx(100 * 25 / 30)


def test_relaxed_rules_are_refused_where_none_are_known():
    with pytest.raises(ConfigError, match="relaxed-published finds neighbouring phases by their numbers"):
        sm.score([0, 1], [0, 1], n_phases=11, protocol="relaxed-published")
    named = sm.score([0, 1], [0, 1], n_phases=11, protocol="relaxed-published", rules="neighbours")
    assert named["settings"]["rules"] == "neighbours"


def test_segmental_by_hand():
    truth = seq((0, 50), (1, 50), (2, 50))
    flicker = seq((0, 54), (1, 16), (0, 1), (1, 29), (2, 50))
    score = sm.score(truth, flicker, n_phases=3, protocol="segmental")
    assert mean(score, "edit") == pytest.approx(60)
    assert mean(score, "over_segmentation") == pytest.approx(5 / 3)
    assert score["latency_s"] == {
        "mean": 2.0,
        "median": 2.0,
        "mean_absolute": 2.0,
        "transitions": 2,
        "missed": 0,
        "early": 0,
        "late": 1,
    }
    assert score["per_phase"]["phase 1"]["latency_s"]["mean"] == 4
    assert score["transitions"] == [
        {"run": 0, "video": "video 0", "row": 50, "from": "phase 0", "to": "phase 1", "delay_s": 4.0},
        {"run": 0, "video": "video 0", "row": 100, "from": "phase 1", "to": "phase 2", "delay_s": 0.0},
    ]
    # IoU: 0 50/54, 1 16/50 and 29/50 (the second claims a taken segment at 10 and 25), 0 1/50 (below 10),
    # 2 1.
    assert mean(score, "f1_10") == pytest.approx(100 * 6 / 8)
    assert mean(score, "f1_50") == pytest.approx(100 * 6 / 8)


def test_a_missed_transition_is_counted_and_has_no_delay():
    score = sm.score(seq((0, 9), (1, 9)), seq((0, 18)), n_phases=2, protocol="segmental", fps=3)
    assert (score["latency_s"]["missed"], score["latency_s"]["mean"]) == (1, None)
    assert score["transitions"][0]["delay_s"] is None


@pytest.mark.parametrize(("shifts", "median"), [((4,), 4), ((4, 8), 6), ((4, 8, -2), 4)])
def test_the_median_latency_is_the_middle_one(shifts, median):
    labels = [seq((0, 30), (1, 30))] * len(shifts)
    score = sm.score(
        labels, [seq((0, 30 + shift), (1, 30 - shift)) for shift in shifts], n_phases=2, protocol="segmental"
    )
    assert score["latency_s"]["median"] == median


def test_latency_is_in_seconds():
    score = sm.score(seq((0, 30), (1, 30)), seq((0, 45), (1, 15)), n_phases=2, protocol="segmental", fps=25)
    assert score["latency_s"]["mean"] == pytest.approx(0.6)


def test_pooled_overlap_f1_counts_segments_of_all_videos_together():
    perfect, flicker = (seq((0, 9)), seq((0, 9))), (seq((0, 9)), seq((1, 3), (0, 2), (1, 4)))
    score = sm.score([perfect[0], flicker[0]], [perfect[1], flicker[1]], n_phases=2, protocol="segmental")
    # hits 1 of 1 and 1 of 3 at 10 %: per video 100 and 50, pooled 2*2/(2*2+2).
    assert mean(score, "f1_10") == pytest.approx(75)
    assert score["f1_10"]["pooled"] == pytest.approx(100 * 4 / 6)


@pytest.fixture
def with_probabilities():
    generator = np.random.default_rng(3)
    labels = [generator.integers(0, 4, size=n) for n in (40, 60)]
    probabilities = [generator.dirichlet(np.ones(4), size=n) for n in (40, 60)]
    return labels, [p.argmax(axis=1) for p in probabilities], probabilities


def test_map_is_pooled_as_grasp_does_and_also_given_per_video(with_probabilities):
    labels, predictions, probabilities = with_probabilities
    score = sm.score(labels, predictions, n_phases=4, protocol="map", probabilities=probabilities)

    def mean_ap(truth, scores):
        return 100 * np.mean(
            [sklearn_metrics.average_precision_score(truth == phase, scores[:, phase]) for phase in range(4)]
        )

    assert mean(score, "map") == pytest.approx(mean_ap(np.concatenate(labels), np.concatenate(probabilities)))
    per_video = [mean_ap(*video) for video in zip(labels, probabilities, strict=True)]
    assert mean(score, "map_by_video") == pytest.approx(np.mean(per_video))
    assert score["map_by_video"]["std_videos"] == pytest.approx(np.std(per_video, ddof=1))
    assert mean(score, "map") != pytest.approx(mean(score, "map_by_video"))


def test_calibration_reports_log_loss_and_errors_overall_and_near_transitions(with_probabilities):
    labels, predictions, probabilities = with_probabilities
    score = sm.score(
        labels, predictions, n_phases=4, protocol="calibration", probabilities=probabilities, window_s=1
    )
    pooled = sklearn_metrics.log_loss(np.concatenate(labels), np.concatenate(probabilities), labels=range(4))
    assert mean(score, "log_loss") == pytest.approx(pooled)
    assert score["calibration_error"]["mean"] > 0
    assert 0 < score["calibration_error_near_transitions"]["rows"] <= 100


def test_probabilities_are_demanded_by_name_and_skipped_under_all(with_probabilities):
    with pytest.raises(InputError, match="video 0 has no probabilities"):
        sm.score(*V1, n_phases=7, protocol="map")
    report = sm.score(*V1, n_phases=7, protocol="all")
    assert set(report.scores) | set(report.skipped) == set(PROTOCOLS)
    assert set(report.skipped) == {"map", "calibration"}
    labels, predictions, probabilities = with_probabilities
    full = sm.score(labels, predictions, n_phases=4, protocol="all", probabilities=probabilities)
    assert set(full.skipped) == {"relaxed-published", "relaxed-repaired"}


def test_json_holds_no_nan_and_the_documented_keys():
    report = sm.score(*V1, n_phases=7, protocol="all").as_dict()
    text = json.dumps(report, allow_nan=False)
    published = json.loads(text)["protocols"]["relaxed-published"]
    assert {"accuracy", "jaccard", "precision", "recall", "per_phase", "settings"} <= set(published)
    assert {"mean", "std_videos"} <= set(published["accuracy"])
    assert {"mean", "std_phases"} <= set(published["jaccard"])
    assert report["videos"] == 1


def test_a_score_prints_its_protocol_and_settings_with_its_numbers():
    text = str(sm.score(*V2, n_phases=7, protocol="relaxed-published"))
    assert text.splitlines()[0].startswith(
        "relaxed-published: 1 video(s), 1 run(s), 1 row/s, window 10 s, rules cholec80"
    )
    assert "accuracy     93.33" in text
    assert repr(sm.score(*V2, n_phases=7, protocol="relaxed-published")) == text  # what a notebook shows


def runs_of(*predictions):
    truth = seq((0, 10), (1, 10))
    return [[make_pair("v", truth, predicted, 2)] for predicted in predictions]


def test_several_seeds_have_a_spread_over_runs():
    report = score_runs(
        runs_of(seq((0, 10), (1, 10)), seq((0, 12), (1, 8))), Settings(("a", "b")), ["strict"]
    )
    score = report.scores["strict"]
    assert score["accuracy"]["mean"] == 95
    assert score["accuracy"]["std_runs"] == pytest.approx(np.std([100, 90], ddof=1))
    assert score["settings"]["runs"] == 2
    assert "over runs" in str(score)


def test_runs_over_different_labels_are_refused():
    runs = [*runs_of(seq((0, 20))), [make_pair("v", seq((1, 20)), seq((0, 20)), 2)]]
    with pytest.raises(InputError, match="run 1 does not hold the same videos and labels"):
        score_runs(runs, Settings(("a", "b")), ["strict"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 1], [0, 1], 2, "strikt"), ConfigError, "did you mean 'strict'"),
        (([[0], [1]], [[0]], 2), InputError, "labels hold 2 videos and predictions 1"),
        (([[0, 1]], [0, 1], 2), InputError, "one prediction sequence per video"),
        (([0], [0], 0), InputError, "n_phases=0"),
        (([], [], 2), InputError, "non-empty"),
    ],
)
def test_misuse_is_answered_with_what_to_do(arguments, error, message):
    with pytest.raises(error, match=message):
        sm.score(*arguments)


def test_names_must_fit_the_number_of_phases():
    assert "b" in sm.score([0], [0], 2, names=["a", "b"])["per_phase"]
    with pytest.raises(InputError, match="1 names for n_phases=2"):
        sm.score([0], [0], 2, names=["a"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fps": 0}, "fps=0"),
        ({"fps": float("inf")}, "fps=inf"),
        ({"window_s": -1}, "window_s=-1"),
        ({"window_s": float("inf")}, "s=inf"),
    ],
)
def test_impossible_rates_and_windows_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        sm.score([0], [0], 2, **changes)


def test_all_stands_for_every_protocol_once_and_each_dataset_has_a_usual_one():
    assert resolve_protocols(["map", "all"]) == ["map", *(name for name in PROTOCOLS if name != "map")]
    usual = {name: usual_protocol(name) for name in ("cholec80", "m2cai16", "autolaparo", "grasp", "my own")}
    assert usual == {
        "cholec80": "relaxed-published",
        "m2cai16": "relaxed-published",
        "autolaparo": "strict",
        "grasp": "map",
        "my own": "strict",
    }


def test_metrics_is_a_public_module_with_everything_it_names():
    assert sm.metrics.wilcoxon is not None
    assert all(hasattr(sm.metrics, name) for name in sm.metrics.__all__)
