"""Closed forms, phases over time and the regime: answers by hand, of the paper, by integrals and of real
annotations."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from command import call
from surgicalmamba.data.labels import PhaseVocabulary, read_segments
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.eval.segments import BURST_REACH
from surgicalmamba.insight import regime as closed
from surgicalmamba.insight.regime import (
    AnnotatedVideo,
    Annotations,
    Assumptions,
    burst_floor,
    burst_width,
    find_regime,
    from_rows,
    from_stretches,
    read_annotations,
    read_prepared,
    time_in_bursts,
)
from surgicalmamba.insight.regime_page import draw_regime, markdown, text, verdict_sentences
from surgicalmamba.train.losses import phase_boundaries, transition_target
from toy import LENGTHS, write_toy_dataset


def integral(function, low, high, steps=400_001):
    """The trapezoidal rule."""
    x = np.linspace(low, high, steps)
    y = function(x)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


def test_burst_mass_is_the_integral_of_the_target():
    left = integral(lambda u: np.exp(-(u**2) / (2 * 2.0**2)), -60, 0)
    right = integral(lambda u: np.exp(-(u**2) / (2 * 12.0**2)), 0, 200)
    assert closed.burst_mass(2, 12) == pytest.approx(left + right, rel=1e-6)
    assert closed.burst_mass(1, 9) == pytest.approx(closed.burst_mass(5, 5))


def test_halving_what_survives_takes_about_eight_frames_of_full_intensity():
    a = 0.083  # the paper's plateau of 0.92 per frame
    assert math.exp(-2 * a) == pytest.approx(0.846, abs=2e-3)
    assert math.log(2) / a == pytest.approx(8.3, abs=0.1)
    assert closed.selectivity(a, math.log(2) / a) == pytest.approx(2)


def test_a_burst_of_width_w_gives_a_selectivity_of_at_most_exp_a_w():
    a, width = 0.1, 10
    intensities = np.linspace(0, 1, width)
    assert closed.selectivity(a, intensities.sum()) <= math.exp(a * width)


def test_the_rate_that_replaces_a_burst_suppresses_equally_at_that_age():
    a, mass, age = 0.05, 9.0, 30.0
    faster = closed.rate_without_bursts(a, mass, age)
    assert math.exp(-2 * faster * age) == pytest.approx(
        closed.boundary_survival(a, mass) ** 2 * math.exp(-2 * a * age)
    )
    assert closed.capacity_kept(mass, age) == pytest.approx(a / faster)


def test_contrast_after_a_boundary_is_clearing_times_gain():
    assert closed.contrast_after_boundary(0.1, 10.0, mean_squared_gain=4.0) == pytest.approx(
        math.exp(2.0) * 4.0
    )


def test_capacity_ratio_grows_with_the_spread_of_lengths_and_is_the_threshold_alone_without_spread():
    theta = 0.1
    assert closed.capacity_ratio(theta, 600, 60) == pytest.approx(math.log(10) * 10)
    assert closed.capacity_ratio(theta, 60, 60) == pytest.approx(math.log(10))
    assert math.exp(-closed.smallest_fixed_rate(theta, 60) * 60) == pytest.approx(theta)
    assert closed.boundary_survival(0.02, closed.smallest_burst(theta, 0.02)) == pytest.approx(theta)


def test_burst_cost_matches_the_integrals_of_energy_lost_on_each_side():
    a, rise, fall = 0.05, 2.0, 6.0
    before = integral(lambda u: np.exp(-(u**2) / (2 * rise**2)), -80, 0)
    after = integral(lambda u: 2 * a * u * np.exp(-(u**2) / (2 * fall**2)), 0, 200)
    assert closed.burst_cost(a, rise, fall) == pytest.approx((before, after), rel=1e-6)


def test_widest_falls_are_the_papers_bounds():
    assert closed.widest_fall(1.0) == pytest.approx(0.55, abs=5e-3)
    assert closed.widest_cheap_fall(1.0) == pytest.approx(0.31, abs=5e-3)
    a = 0.05
    fall = closed.widest_fall(a)
    assert 2 * math.exp(-a * closed.burst_mass(0, fall)) == pytest.approx(
        1
    )  # gain and decay cancel exactly there
    # marginal cost after the boundary, 4 a sigma, equals the one before it, sqrt(pi / 2), at the cheaper
    # bound
    assert 4 * a * closed.widest_cheap_fall(a) == pytest.approx(math.sqrt(math.pi / 2))


WORDS = PhaseVocabulary("own", ("Open", "Work", "Close"))


def segments_of(video):
    return list(zip(video.phase.tolist(), video.start_s.tolist(), video.stop_s.tolist(), strict=True))


def test_a_segment_runs_from_one_boundary_to_the_next_in_seconds():
    assert segments_of(from_rows("v", np.array([0, 0, 0, 0, 2, 2, 1]), rows_per_s=2.0)) == [
        (0, 0.0, 2.0),
        (2, 2.0, 3.0),
        (1, 3.0, 3.5),
    ]


def test_unlabelled_rows_end_no_segment_and_count_for_none_at_either_end_of_the_video():
    rows = np.array([-1, -1, 0, -1, 0, -1, -1, 1, 1, -1])
    assert segments_of(from_rows("v", rows, rows_per_s=1.0)) == [(0, 2.0, 7.0), (1, 7.0, 9.0)]


def test_a_video_without_a_label_has_no_segments():
    assert segments_of(from_rows("v", np.full(5, -1), 1.0)) == []


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=60))
def test_boundaries_are_where_training_sees_them(labels):
    timeline = from_rows("v", np.array(labels), 1.0)
    assert timeline.boundaries_s.tolist() == phase_boundaries(torch.tensor(labels)).tolist()


def test_stretches_of_time_become_segments_and_gaps_belong_to_the_earlier(tmp_path):
    file = tmp_path / "op.csv"
    file.write_text("start,end,phase\n0:10,1:00,Open\n70,80,Open\n90.5,100,Close\n")
    assert segments_of(from_stretches("op", read_segments(file, WORDS))) == [
        (0, 10.0, 90.5),
        (2, 90.5, 100.0),
    ]


def test_a_prepared_dataset_is_read_with_its_own_phases_and_rate(tmp_path):
    found = read_prepared(write_toy_dataset(tmp_path, {"all": {"train": list(LENGTHS)}}))
    assert (found.dataset, found.phases, len(found.videos)) == ("toy", ("x", "y", "z"), len(LENGTHS))
    assert [float(video.length_s.sum()) for video in found.videos] == [
        float(length) for length in LENGTHS.values()
    ]
    assert read_annotations(tmp_path, None, None).length_s.tolist() == found.length_s.tolist()


def write(folder, name, frames, phases, header="Frame\tPhase\n"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(
        header + "".join(f"{frame}\t{phase}\n" for frame, phase in zip(frames, phases, strict=True))
    )


@pytest.mark.parametrize("step", [1, 25])
def test_row_numbers_of_a_known_dataset_tell_the_seconds_at_any_step(tmp_path, step):
    phases = ["Preparation"] * (100 // step) + ["ClippingCutting"] * (50 // step)
    write(tmp_path, "phase_annotations/video01-phase.txt", range(0, 150, step), phases)
    found = read_annotations(tmp_path, "cholec80", None)
    assert [segments_of(video) for video in found.videos] == [[(0, 0.0, 4.0), (2, 4.0, 6.0)]]
    assert found.clock == f"{25 // step} rows per second, by row numbers {step} apart at 25 a second"


def test_a_given_rate_is_taken_and_a_rate_that_nothing_tells_is_assumed_and_said(tmp_path):
    (tmp_path / "phases.yaml").write_text("phases: [Open, Work, Close]\n")
    write(tmp_path, "op1.txt", range(6), [0, 0, 1, 1, 1, 2])
    (tmp_path / "phases.yaml").rename(tmp_path.parent / "own.yaml")
    own = str(tmp_path.parent / "own.yaml")
    assert segments_of(read_annotations(tmp_path, own, 2.0).videos[0]) == [
        (0, 0.0, 1.0),
        (1, 1.0, 2.5),
        (2, 2.5, 3.0),
    ]
    assert (
        read_annotations(tmp_path, own, None).clock == "1 rows per second, assumed; say otherwise with --fps"
    )


def test_a_folder_of_ones_own_without_videos_needs_no_further_word(tmp_path):
    (tmp_path / "phases.yaml").write_text("phases: [Open, Work, Close]\nrows: second\n")
    write(tmp_path, "op1.txt", range(3), ["Open", "Open", "Close"])
    (tmp_path / "op2.csv").write_text("start,end,phase\n0,30,Open\n30,90,Work\n")
    found = read_annotations(tmp_path, None, None)
    assert {video.video: segments_of(video) for video in found.videos} == {
        "op1": [(0, 0.0, 2.0), (2, 2.0, 3.0)],
        "op2": [(0, 0.0, 30.0), (1, 30.0, 90.0)],
    }


def test_cataract_tables_alone_tell_lengths_and_rates(tmp_path):
    (tmp_path / "annotations.csv").write_text("VideoID;FrameNo;Phase\n7;50;1\n7;100;2\n")
    (tmp_path / "videos.csv").write_text("VideoID;Frames;FPS;Surgeon;Experience\n7;300;25;1;1\n")
    assert segments_of(read_annotations(tmp_path, "cataract101", None).videos[0]) == [
        (0, 2.0, 4.0),
        (1, 4.0, 12.0),
    ]
    with pytest.raises(ConfigError, match=r"--fps 1 was given, but .* has its own rate"):
        read_annotations(tmp_path, "cataract101", 1.0)


def test_plain_label_files_of_a_dataset_with_tables_are_read_as_evaluate_reads_them(tmp_path):
    write(tmp_path, "case_7.csv", range(4), [1, 1, 2, 2])
    assert segments_of(read_annotations(tmp_path, "cataract101", 1.0).videos[0]) == [
        (0, 0.0, 2.0),
        (1, 2.0, 4.0),
    ]


def test_a_dataset_whose_recordings_differ_in_rate_asks_for_it(tmp_path):
    write(tmp_path, "Hei-Chole1_Annotation_Phase.csv", [], [], header="0,0\n1,1\n")
    with pytest.raises(DataError, match=r"heichole counts frames, and its recordings differ .* or --fps"):
        read_annotations(tmp_path, "heichole", None)
    assert segments_of(read_annotations(tmp_path, "heichole", 50.0).videos[0]) == [
        (0, 0.0, 0.02),
        (1, 0.02, 0.04),
    ]


@pytest.mark.parametrize(
    ("phases", "fps", "error", "message"),
    [
        (None, None, ConfigError, r"no phases given and .* has no phases\.yaml"),
        ("cholec8", None, ConfigError, r"did you mean 'cholec80'"),
        ("cholec80", None, DataError, r"no change of phase in 1 labelled video"),
    ],
)
def test_a_folder_that_tells_too_little_is_refused_in_one_line(tmp_path, phases, fps, error, message):
    write(tmp_path, "video01-phase.txt", range(3), ["Preparation"] * 3)
    with pytest.raises(error, match=message):
        read_annotations(tmp_path, phases, fps)


def test_a_missing_folder_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_annotations(tmp_path / "absent", "cholec80", None)


def video(name, *segments):
    """A video from (phase, seconds) pairs."""
    ends = np.cumsum([seconds for _, seconds in segments]).astype(float)
    return AnnotatedVideo(name, np.array([phase for phase, _ in segments]), np.append(0.0, ends[:-1]), ends)


def dataset(*videos, names=("Open", "Work", "Close")):
    return Annotations("made", names, list(videos), "by hand")


TWO = dataset(video("a", (0, 100), (1, 1000), (2, 100)), video("b", (0, 100), (1, 500), (0, 100), (2, 200)))


def test_lengths_per_phase_and_overall_by_hand():
    regime = find_regime(TWO, Assumptions(quantile=0.1))
    work = regime.phases[1]
    assert (work.name, work.segments, work.videos, work.mean, work.longest, work.shortest) == (
        "Work",
        2,
        2,
        750.0,
        1000.0,
        500.0,
    )
    assert work.share_of_time == pytest.approx(1500 / 2100)
    assert regime.phases[0].segments == 3 and regime.boundaries == 5
    assert regime.overall.mean == pytest.approx(300) and regime.overall.median == 100.0
    assert regime.overall.low == 100.0  # four of seven segments last 100 s


def test_the_equations_by_hand():
    regime = find_regime(TWO, Assumptions(theta=math.exp(-2), rise_s=2, fall_s=12))
    assert regime.spread == pytest.approx(10)
    assert regime.capacity_ratio == pytest.approx(2 * 10)  # log(1 / theta) L_max / L_q
    assert regime.burst_width_s == 42 and regime.width_over_mean == pytest.approx(42 / 300)
    assert regime.burst_mass_s == pytest.approx(math.sqrt(math.pi / 2) * 14)
    least, most = regime.window_per_s
    assert math.exp(-least * regime.burst_mass_s) == pytest.approx(math.exp(-2)) and most == pytest.approx(
        1 / 300
    )
    fixed = regime.rates[2]
    assert fixed.per_s == pytest.approx(2 / 100)
    assert fixed.widest_cheap_fall_s == pytest.approx(
        0.31 / 0.02, rel=0.02
    ) and fixed.widest_fall_s == pytest.approx(0.55 / 0.02, rel=0.01)


def test_overlap_counts_stretches_between_two_boundaries_and_no_first_or_last_segment():
    narrow = dataset(video("a", (0, 5), (1, 30), (2, 100), (0, 41), (1, 5)))
    regime = find_regime(narrow, Assumptions(rise_s=2, fall_s=12))  # W = 42
    assert regime.overlapping == pytest.approx(2 / 3)
    assert regime.merged == 0  # 30 s and 41 s: floors of 0.10 and 0.01
    assert find_regime(narrow, Assumptions(rise_s=10, fall_s=30)).merged == pytest.approx(2 / 3)


def test_time_in_bursts_counts_overlapping_bursts_once_and_stays_within_the_video():
    one = [video("a", (0, 50), (1, 10), (2, 40))]
    assert time_in_bursts(one, rise=2, fall=5) == pytest.approx((21 + 10) / 100)  # 44 to 65, and on to 75
    assert time_in_bursts([video("a", (0, 2), (1, 2))], rise=10, fall=10) == 1.0
    assert time_in_bursts([video("a", (0, 50), (1, 50))], rise=1, fall=1) == pytest.approx(6 / 100)


@pytest.mark.parametrize(
    ("gap", "rise", "fall"), [(30, 2.0, 12.0), (90, 10.0, 30.0), (200, 2.0, 12.0), (25, 7.0, 7.0)]
)
def test_the_floor_between_bursts_is_the_lowest_value_of_the_training_target(gap, rise, fall):
    fps = 50  # finely sampled, so that the lowest sample is near the lowest value
    labels = torch.arange(3).repeat_interleave(torch.tensor([200, gap, 200]) * fps)
    between = transition_target(labels, fps, rise, fall)[200 * fps : (200 + gap) * fps]
    assert float(between.min()) == pytest.approx(burst_floor(gap, rise, fall), rel=2e-2, abs=1e-9)
    assert burst_floor(burst_width(rise, fall), rise, fall) == pytest.approx(math.exp(-(BURST_REACH**2) / 2))


def test_the_suggestion_lets_the_short_segments_outlast_a_burst_and_keeps_the_papers_proportion():
    regime = find_regime(TWO, Assumptions())
    assert burst_width(regime.suggested_rise_s, regime.suggested_fall_s) == pytest.approx(100)  # L_q
    assert regime.suggested_fall_s == pytest.approx(6 * regime.suggested_rise_s)
    assert regime.suggested_overlapping == 0
    assert regime.least_fps * regime.suggested_fall_s == pytest.approx(2)


def test_with_equal_lengths_the_bound_of_cheap_forgetting_rules_and_there_is_little_to_gain():
    equal = dataset(video("a", (0, 60), (1, 60), (2, 60)))
    regime = find_regime(equal, Assumptions())
    assert regime.spread == 1 and regime.verdict == "little to gain"
    assert regime.capacity_ratio == pytest.approx(math.log(10))
    assert "too alike in length" in verdict_sentences(regime)[0]
    assert regime.suggested_fall_s == pytest.approx(
        60 / 3 * 6 / 7
    )  # room for a burst; 0.31 mu = 18.8 is more


def test_bursts_that_run_together_ask_for_narrower_ones_and_narrow_ones_fit():
    quick = dataset(*(video(f"v{i}", (0, 10), (1, 60), (2, 8), (1, 30), (0, 20)) for i in range(5)))
    assert find_regime(quick, Assumptions()).verdict == "fits with narrower bursts"
    assert find_regime(quick, Assumptions(rise_s=0.3, fall_s=1.8)).verdict == "fits"


def test_the_window_opens_only_for_a_weak_demand_on_bursts_that_stand_apart():
    assert not find_regime(TWO, Assumptions()).window_is_open
    assert find_regime(TWO, Assumptions(theta=0.95)).window_is_open
    crowded = find_regime(dataset(video("a", (0, 10), (1, 10), (2, 90), (1, 10))), Assumptions(theta=0.9))
    assert crowded.window_per_s[0] <= crowded.window_per_s[1] and not crowded.window_is_open
    assert "if only because bursts crowd" in verdict_sentences(crowded)[3]


def test_the_figure_shows_every_segment_and_where_the_set_and_suggested_widths_lie():
    regime = find_regime(TWO, Assumptions())
    lengths, overlap, rates = draw_regime(regime, TWO).axes
    assert sum(len(dots.get_offsets()) for dots in lengths.collections) == 7
    marks = {line.get_label(): line.get_xdata()[0] for line in overlap.lines if ":" in line.get_label()}
    assert marks == {"set: 42 s": pytest.approx(42), "suggested: 100 s": pytest.approx(100)}
    assert len(rates.lines) == 5


def test_golden_numbers_of_the_real_annotations(real_data):
    cholec = find_regime(read_annotations(real_data("cholec80/labels"), "cholec80", None), Assumptions())
    assert (cholec.videos, cholec.overall.segments, cholec.overall.low, cholec.overall.longest) == (
        39,
        268,
        47.0,
        2558.0,
    )
    assert cholec.overall.mean == pytest.approx(344.18, abs=0.01) and cholec.width_over_mean == pytest.approx(
        0.122, abs=1e-3
    )
    assert cholec.verdict == "fits" and cholec.overlapping == pytest.approx(2 / 190)
    assert (cholec.suggested_rise_s, cholec.suggested_fall_s) == pytest.approx((2.24, 13.43), abs=0.01)

    cataract = find_regime(
        read_annotations(real_data("cataract101/annotations.csv").parent, "cataract101", None), Assumptions()
    )
    assert (cataract.videos, cataract.overall.segments, cataract.overall.low) == (101, 1173, 9.12)
    assert cataract.overall.mean == pytest.approx(
        42.08, abs=0.01
    ) and cataract.width_over_mean == pytest.approx(0.998, abs=1e-3)
    assert cataract.verdict == "fits with narrower bursts" and cataract.suggested_fall_s == pytest.approx(
        2.61, abs=0.01
    )


@pytest.fixture
def folder(tmp_path):
    phases = ["Preparation"] * 60 + ["CalotTriangleDissection"] * 900 + ["ClippingCutting"] * 80
    rows = "".join(f"{25 * row}\t{phase}\n" for row, phase in enumerate(phases))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "video01-phase.txt").write_text("Frame\tPhase\n" + rows)
    return tmp_path


def test_the_command_leaves_results_and_figure_and_refreshes_its_section(folder):
    out, page = folder / "out", folder / "results.md"
    arguments = [
        "--labels",
        folder / "labels",
        "--phases",
        "cholec80",
        "--out",
        out,
        "--docs",
        page,
        "--json",
    ]
    command = [sys.executable, "-m", "surgicalmamba", "regime", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document == json.loads((out / "results.json").read_text())
    assert (
        document["overall"]["mean"] == pytest.approx(1040 / 3)
        and document["verdict"] == "fits"
        and document["command"]
    )
    assert (out / "regime.png").stat().st_size > 10_000 and "<svg" in (out / "regime.svg").read_text()
    assert (
        "<!-- study regime cholec80 -->" in page.read_text()
        and "| CalotTriangleDissection | 1 | 1 | 86.5 |" in page.read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give either --data"),
        (["--data", "x", "--labels", "y"], 2, "give either --data"),
        (["--data", "x", "--phases", "cholec80"], 2, "--phases and --fps need --labels"),
        (["--labels", "y", "--theta", "1"], 2, "--theta 1 must lie between 0 and 1"),
        (["--labels", "y", "--fall", "0"], 2, "--fall 0 must be positive"),
        (["--labels", "absent", "--phases", "cholec80"], 1, "absent is not a folder"),
        (["--data", "absent"], 1, "absent is not a folder"),
    ],
)
def test_misuse_and_missing_data_are_told_apart(monkeypatch, capsys, arguments, code, message):
    ended, printed, complaint = call(monkeypatch, capsys, "regime", *arguments)
    assert (ended, printed) == (code, "") and message in complaint


def test_words_and_page_carry_the_numbers():
    regime = find_regime(TWO, Assumptions())
    words = text(regime)
    assert "made: 2 videos, 7 segments, 5 boundaries (by hand)" in words and "10 times as long" in words
    about = {"date": "d", "version": "v", "commit": None, "command": "c"}
    assert "L_max / L_q 10.0, capacity ratio 23.0, W 42.0 s, W / mu 0.140" in markdown(regime, about)
