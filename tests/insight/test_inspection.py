"""`surgicalmamba inspect`: what is seen inside is what happens inside, for every variant and both kinds of
dataset."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from command import call
from surgicalmamba.core.rotation import regram
from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.errors import ConfigError, DataError
from surgicalmamba.insight.inspection import (
    FIRST_SEED,
    N_DRAWS,
    OWN,
    Spread,
    alignment,
    chunk_phases,
    generator_similarity,
    inspect_video,
    read_predicted,
    shared_projection,
    stillness,
    trace_video,
    trained_bursts,
    untrained,
    untrained_control,
    without_rotation,
)
from surgicalmamba.insight.inspection_page import pictures_on_page, views_of, write_inspection
from surgicalmamba.train.inside import around_boundaries, boundary_frames, plane_similarity
from surgicalmamba.train.predict import predict_video
from toy import write_toy_dataset

CPU = torch.device("cpu")
PATH = {"d_state": 8, "d_head": 8, "chunk_len": 8, "rotation": {"rank": 2, "d_hidden": 4, "theta_init": 0.7}}


def tiny_model(variant="full", **changes):
    torch.manual_seed(0)
    slow = {**PATH, "intensity": {"intensity_init": 0.3}}
    settings = {
        "d_model": 16,
        "n_blocks": 2,
        "clip_len": 20,
        "block": {"slow": slow, "fast": PATH},
        "head": {"path": PATH},
    }
    config = sm.ModelConfig(
        **{**settings, "backbone": None, "d_feature": 5, "n_phases": 3, **changes}
    ).variant(variant)
    model = sm.SurgicalMamba(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def write_page(found, folder):
    """The results of an inspection whose page is written to `folder / "out"`."""
    return write_inspection(found, views_of(found), folder / "out", {"command": "c"})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_toy_dataset(tmp_path_factory.mktemp("toy"), {"all": {"train": ["a"], "test": ["c"]}})


@pytest.fixture(scope="module")
def video(data):
    return PreparedDataset.open(data).videos["c"]  # 75 samples: nine chunks of eight and three samples more


@pytest.mark.parametrize("variant", ["full", "without-z", "without-lambda", "without-fast", "vanilla-mamba2"])
def test_a_traced_video_is_predicted_as_ever_and_absent_parts_are_absent(variant, video):
    model = tiny_model(variant)
    trace, plain = trace_video(model, video, CPU, block=1), predict_video(model, video, CPU)
    assert trace.predicted.tolist() == plain.phase.tolist()
    assert len(trace.planes) == (0 if "z" in variant or "vanilla" in variant else 2)
    if plain.intensity is None:
        assert trace.intensity is None
    else:
        np.testing.assert_allclose(trace.intensity.mean(axis=1), plain.intensity, atol=1e-6)
    assert trace.decay.shape == (75, 2, 4) and ((trace.decay > 0) & (trace.decay < 1)).all()
    assert len(trace.states) == len(trace.state_rows) == 75 and trace.state_rows[-1] == 74
    assert not any(block.slow._forward_hooks for block in model.blocks)  # nothing is left behind


def test_the_decay_seen_is_the_decay_that_acts_on_the_state(video):
    # where nothing is written (x = 0 by zeroed conv output), one frame leaves exactly decay times the state
    model = tiny_model("without-z")
    path = model.blocks[1].slow
    g = torch.Generator().manual_seed(1)
    u = torch.randn(1, 1, 16, generator=g)
    with torch.no_grad():
        empty = path.initial_state(1, torch.float32, CPU)
        full = type(empty)(torch.randn(empty.ssm.shape, generator=g), empty.conv_tail, None)
        written = path(u, empty, (0,)).state.ssm
        after = path(u, full, (0,)).state.ssm
        decay = path.decay(u, full)
    torch.testing.assert_close(
        after - written, decay[0, 0][None, :, None, None] * full.ssm, rtol=1e-4, atol=1e-5
    )


def test_intensity_is_in_the_decay(video):
    # dA with intensity is dA without it to the power 1 + lambda, frame by frame: only the warp differs
    # between the two models
    warped = tiny_model("full")
    weights = {name: value for name, value in warped.state_dict().items() if ".intensity." not in name}
    plain = tiny_model("without-lambda")
    plain.load_state_dict(weights)
    with_it, without = trace_video(warped, video, CPU, 0), trace_video(plain, video, CPU, 0)
    first = (slice(None), 0)  # the first block sees the same input in both
    np.testing.assert_allclose(
        with_it.decay[first], without.decay[first] ** (1 + with_it.intensity[:, :1]), rtol=1e-4
    )


def test_the_planes_seen_are_those_that_turned_the_state(video):
    model = tiny_model("full")
    seen = trace_video(model, video, CPU, block=0)
    features = torch.from_numpy(np.array(video.features))[None]
    with torch.no_grad():
        before = model.forward_features(features[:, :15]).state
        after = model.forward_features(features[:, 15:16], before).state  # closes the second chunk
        bare = without_rotation(model)
        unturned = type(before)(
            before.frame_index, tuple(_without_sum(b) for b in before.blocks), _path_without_sum(before.head)
        )
        left = bare.forward_features(features[:, 15:16], unturned).state
    planes = seen.planes[0]
    turned = regram(left.blocks[0].slow.ssm, planes.U[1:2], planes.V[1:2], planes.theta[1:2], "dense")
    torch.testing.assert_close(turned, after.blocks[0].slow.ssm, rtol=1e-4, atol=1e-5)
    assert len(planes) == 9


def _path_without_sum(path):
    return type(path)(path.ssm, path.conv_tail, None)


def _without_sum(block):
    return type(block)(_path_without_sum(block.slow), _path_without_sum(block.fast))


def test_with_every_rotation_left_out_the_rest_is_the_same_model():
    model = tiny_model("full")
    bare = without_rotation(model)
    assert bare.config.block.slow.rotation is None and bare.config.head.path.rotation is None
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in bare.state_dict().items())


def test_a_long_video_keeps_a_bounded_number_of_states(video, monkeypatch):
    monkeypatch.setattr("surgicalmamba.insight.inspection.MOST_STATES", 10)
    trace = trace_video(tiny_model(), video, CPU, 0)
    assert (
        len(trace.states) <= 14 and trace.state_rows[-1] == 74
    )  # stride 8 within clips of 20, each clip's rest by itself


def test_similarity_is_one_with_itself_symmetric_and_blind_to_a_turn_within_the_plane(video):
    planes = trace_video(tiny_model(), video, CPU, 0).planes[0]
    for similarity in (plane_similarity(planes), generator_similarity(planes)):
        np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-6)
        np.testing.assert_allclose(similarity, similarity.T, atol=1e-6)
        assert (similarity < 1 - 1e-6).any()
    flipped = type(planes)(-planes.V, planes.U, planes.theta)  # a quarter turn within every plane
    np.testing.assert_allclose(plane_similarity(flipped), plane_similarity(planes), atol=1e-6)


def test_a_chunk_has_the_phase_of_most_of_its_samples_and_pairs_are_told_apart():
    labels = np.array([0, 0, 0, 1, 1, 1, 1, -1, -1, -1, -1, -1, 2, 2, 0, 2])
    phases = chunk_phases(labels, 4, 4)
    assert phases.tolist() == [0, 1, -1, 2]
    similarity = np.array([[1, 0.5, 9, 0.3], [0.5, 1, 9, 0.1], [9, 9, 9, 9], [0.3, 0.1, 9, 1]])
    found = alignment(similarity, phases)
    assert found.pairs == (0, 3, 0, 1) and math.isnan(found.same_phase)
    assert found.other_phase == pytest.approx(0.3) and found.next_other_phase == 0.5


def test_gaps_by_hand():
    phases, similarity = np.array([0, 0, 1]), np.array([[1, 0.9, 0.6], [0.9, 1, 0.6], [0.6, 0.6, 1]])
    found = alignment(similarity, phases)
    assert (found.gap, found.relative_gap) == pytest.approx(
        (0.3, 0.75)
    )  # planes differ by 0.1 within the phase, by 0.4 between phases
    wider = alignment(
        1 - 2 * (1 - similarity), phases
    )  # twice as much variation, which follows the phases no better
    assert (wider.gap, wider.relative_gap) == pytest.approx((0.6, 0.75))
    assert math.isnan(alignment(np.ones((3, 3)), phases).relative_gap)


def test_untrained_parts_are_drawn_again_and_every_other_weight_stays():
    model = tiny_model()
    before = torch.get_rng_state()
    first, again, second = untrained(model, 0), untrained(model, 0), untrained(model, 1)
    assert torch.equal(before, torch.get_rng_state())
    for name, value in model.state_dict().items():
        drawn = ".rotator." in name or ".intensity." in name
        assert torch.equal(first.state_dict()[name], value) != drawn and torch.equal(
            first.state_dict()[name], again.state_dict()[name]
        )
    assert not torch.equal(first.blocks[0].slow.rotator.planes.w1, second.blocks[0].slow.rotator.planes.w1)
    fresh = sm.SurgicalMamba(model.config)
    torch.testing.assert_close(
        first.head.block.slow.rotator.angles.b2, fresh.head.block.slow.rotator.angles.b2
    )  # by the config's start


def test_the_control_is_what_the_untrained_networks_show_on_the_same_video(video):
    model = tiny_model()
    frames = boundary_frames([video.labels], [np.linspace(0, 1, 75)], 1.0, 2.0, 12.0)
    control = untrained_control(model, video, frames, 2)
    for seed in range(2):
        trace = trace_video(untrained(model, FIRST_SEED + seed), video, CPU, 0)
        phases = chunk_phases(video.labels, 8, 9)
        gaps = [alignment(plane_similarity(planes), phases).gap for planes in trace.planes]
        assert gaps == pytest.approx([control.alignment(block, "gap")[seed] for block in range(2)], abs=1e-6)
        assert trace.inside.measure(frames).values() == pytest.approx(
            control.measured[seed].values(), rel=1e-3
        )
    thetas = [draw.rotations["head"].theta_q50 for draw in control.measured]
    assert control.rotation("head", "theta_q50") == Spread(sum(thetas) / 2, min(thetas), max(thetas))


def test_planes_that_never_change_have_no_gap_beyond_rounding(data, tmp_path):
    tiny_model("constant-z").save(tmp_path / "constant")
    results = write_page(
        inspect_video(str(tmp_path / "constant"), data, "c", {}, 0, "cpu", draws=2), tmp_path
    )
    for block in results["planes"]["blocks"]:
        assert (
            block["gap"]["verdict"] == "inside the untrained range"
            and block["relative_gap"]["verdict"] == "not measured"
        )


def test_a_value_is_placed_in_the_range_of_the_untrained_draws():
    spread = Spread.of([0.1, 0.3, 0.2, math.nan])
    assert (spread.mean, spread.low, spread.high) == pytest.approx((0.2, 0.1, 0.3))
    places = {
        0.05: "below the untrained range",
        0.1: "inside the untrained range",
        0.3: "inside the untrained range",
        0.31: "beyond the untrained range",
    }
    assert {value: spread.verdict(value) for value in places} == places
    assert Spread.of([]).verdict(0.1) == "not measured" == spread.verdict(math.nan)


def test_an_untrained_model_is_one_more_draw(data, tmp_path):
    # the control cannot tell its first draw from its draws
    untrained(tiny_model(), FIRST_SEED).save(tmp_path / "untrained")
    results = write_page(inspect_video(str(tmp_path / "untrained"), data, "c", {}, 0, "cpu"), tmp_path)
    for block in results["planes"]["blocks"]:
        for gap in (block["gap"], block["relative_gap"]):
            assert len(gap["untrained"]["draws"]) == N_DRAWS
            assert gap["trained"] == pytest.approx(gap["untrained"]["draws"][0], abs=1e-6)


def test_a_shared_projection_shows_each_run_by_its_own_variance():
    t = torch.linspace(0, 6.283, 50, dtype=torch.float64)
    zero = 0 * t
    circle, line = (
        torch.stack([t.cos(), t.sin(), zero], dim=1),
        torch.stack([0.5 * t.cos(), zero, zero + 7], dim=1),
    )
    first, second = shared_projection([circle, line])
    assert first.dimensions == pytest.approx(2, rel=0.01) and second.dimensions == pytest.approx(1)
    assert sum(first.share) == pytest.approx(1) and max(second.share) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(
        np.linalg.norm(first.points - first.points.mean(0), axis=1),
        (circle - circle.mean(0)).norm(dim=1),
        rtol=1e-6,
    )


def test_the_plateau_is_the_decay_inside_phases(video):
    trace = trace_video(tiny_model(), video, CPU, 0)
    still = stillness(trace, video.labels, fps=2.0, rise_s=0.5, fall_s=1.0)
    inside, at = around_boundaries(video.labels, 2.0, 0.5, 1.0)
    assert still.plateau == pytest.approx(np.median(trace.decay.mean(axis=(1, 2))[inside]))
    assert still.plateau_per_s == pytest.approx(still.plateau**2) and still.boundaries == 2
    assert still.intensity_at_boundaries == pytest.approx(trace.intensity.mean(axis=1)[at].mean())
    assert math.isnan(stillness(trace, video.labels, 2.0, 100.0, 100.0).plateau)


def test_predictions_of_another_system_are_read_by_video_and_refused_with_other_samples(video, tmp_path):
    words = PhaseVocabulary("toy", ("x", "y", "z"))
    (tmp_path / "c.csv").write_text("frame,phase\n" + "".join(f"{i},{i % 3}\n" for i in range(75)))
    assert read_predicted(tmp_path, video, words).tolist() == [i % 3 for i in range(75)]
    assert read_predicted(tmp_path / "c.csv", video, words).tolist() == [i % 3 for i in range(75)]
    (tmp_path / "c.csv").write_text("frame,phase\n0,1\n")
    with pytest.raises(DataError, match="has 1 rows, c has 75 samples"):
        read_predicted(tmp_path, video, words)
    (tmp_path / "c.csv").rename(tmp_path / "d.csv")
    with pytest.raises(DataError, match="no predictions of c; it has d"):
        read_predicted(tmp_path, video, words)


def test_bursts_are_those_of_the_training_where_the_checkpoint_tells(tmp_path):
    model = tiny_model()
    model.save(tmp_path / "told", {"training": {"loss": {"rise_s": 0.4, "fall_s": 2.0}}})
    model.save(tmp_path / "run" / "best")
    assert trained_bursts(str(tmp_path / "told")) == (0.4, 2.0)
    assert trained_bursts(str(tmp_path / "run")) == (2.0, 12.0)


def test_the_command_shows_models_and_predictions_beside_each_other(data, tmp_path):
    tiny_model().save(tmp_path / "full")
    tiny_model("vanilla-mamba2").save(tmp_path / "plain" / "best")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "c.csv").write_text("frame,phase\n" + "".join(f"{i},0\n" for i in range(75)))
    places = ["--with", f"plain={tmp_path / 'plain'}", "--with", f"other system={tmp_path / 'files'}"]
    out = tmp_path / "out"
    docs = tmp_path / "docs" / "results.md"
    docs.parent.mkdir()
    docs.write_text("# Results\n")
    on_page = ["--docs", docs, "--title", "One video, inside"]
    arguments = [tmp_path / "full", "--data", data, "--video", "c", *places, "--out", out, *on_page, "--json"]
    command = [sys.executable, "-m", "surgicalmamba", "inspect", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document == json.loads((out / "results.json").read_text())
    assert set(document["strict_accuracy"]) == {OWN, "plain", "other system"}
    truth = PreparedDataset.open(data).videos["c"].labels
    assert document["strict_accuracy"]["other system"] == pytest.approx(100 * (truth == 0).mean())
    assert len(document["planes"]["blocks"]) == 2 and set(document["state"]) == {
        OWN,
        f"{OWN}, Z left out",
        "plain",
    }
    assert set(document["rotation"]) == {"slow0", "slow1", "fast0", "fast1", "head"}
    for path in document["rotation"].values():
        assert (
            set(path["trained"]) == set(path["untrained"])
            and path["untrained"]["content_dependence"]["low"] > 0
        )
    assert [set(block) for block in document["decay"][OWN]["intensity_of_blocks"]] == 2 * [
        {"trained", "untrained"}
    ]
    assert set(document["decay"]) == {OWN, "plain"} and document["decay"]["plain"]["intensity_inside"] is None
    for figure in ("ribbons", "planes", "state", "decay"):
        assert (out / "figures" / f"{figure}.png").stat().st_size > 5_000 and (
            out / "figures" / f"{figure}.svg"
        ).is_file()
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 4 and "plain has no intensity" in page and "on its own two axes" in page
    assert (
        page.count("the untrained range") == 4 and "<h2>Angles and content dependence</h2>" in page
    )  # two gaps of two blocks
    text = docs.read_text()
    assert text.count("## One video, inside") == 1
    assert f"| other system | {document['strict_accuracy']['other system']:.2f} |" in text
    second, head = document["planes"]["blocks"][1], document["rotation"]["head"]
    assert (
        f"| block 1 | {second['same_phase']:.3f} |" in text
        and f"| {second['relative_gap']['verdict']} |" in text
    )
    assert f"| head | {head['trained']['theta_q10']:.3f} | {head['trained']['theta_q50']:.3f} |" in text
    assert f"| {head['untrained']['theta_q50']['mean']:.3f} (" in text
    assert f"| plain | {document['decay']['plain']['plateau']:.4f} |" in text
    for view in ("ribbons", "planes", "state", "decay"):
        picture = f"images/one-video-inside-{view}.png"
        assert (
            f"]({picture})" in text
            and (docs.parent / picture).read_bytes() == (out / "figures" / f"{view}.png").read_bytes()
        )


def test_a_model_without_z_and_lambda_says_what_is_not_there(data, tmp_path):
    tiny_model("vanilla-mamba2").save(tmp_path / "plain")
    found = inspect_video(str(tmp_path / "plain"), data, "c", {}, None, "cpu")
    results = write_page(found, tmp_path)
    page = (tmp_path / "out" / "index.html").read_text()
    assert (
        results["planes"] is None
        and "This model does not rotate: there are no planes." in page
        and "has no intensity" in page
    )
    assert not (tmp_path / "out" / "figures" / "planes.png").exists()
    shown = pictures_on_page(views_of(found), tmp_path / "out" / "figures", tmp_path / "results.md", "plain")
    assert [line.split("-")[-1] for line in shown.split("\n\n")] == [
        "ribbons.png)",
        "state.png)",
        "decay.png)",
    ]


def test_a_video_too_short_for_two_chunks_has_no_planes_to_compare(data, tmp_path):
    long_chunks = {**PATH, "chunk_len": 60}
    tiny_model(block={"slow": long_chunks, "fast": PATH}, clip_len=60).save(tmp_path / "long")
    results = write_page(inspect_video(str(tmp_path / "long"), data, "c", {}, 0, "cpu"), tmp_path)
    assert (
        results["planes"] is None
        and "ends before two chunks of 60" in (tmp_path / "out" / "index.html").read_text()
    )
    assert {"slow0", "head"} < set(results["rotation"]) and results["rotation"]["slow0"]["trained"][
        "content_dependence"
    ] is None


def test_a_video_that_ends_before_its_first_chunk_is_not_taken_for_a_model_without_rotation(data, tmp_path):
    path = {**PATH, "chunk_len": 100}
    tiny_model(block={"slow": path, "fast": path}, head={"path": path}, clip_len=200).save(tmp_path / "long")
    results = write_page(inspect_video(str(tmp_path / "long"), data, "c", {}, 0, "cpu"), tmp_path)
    assert results["planes"] is results["rotation"] is None
    assert "ends before two chunks of 100" in (tmp_path / "out" / "index.html").read_text()


def test_a_model_that_sees_pictures_is_inspected_from_pictures(tmp_path):
    folder, labels = tmp_path / "pictures", np.arange(20) // 10
    draft = VideoDraft(folder, "v", "frames")
    for label in labels:
        draft.add_image(
            encode_jpeg(np.full((40, 40, 3), (200, 40, 40) if label else (40, 200, 40), dtype=np.uint8))
        )
    rows = np.arange(20)
    entry = draft.commit(
        SampleTable(rows, rows.astype(float), labels), {"sources": {}, "settings_sha256": "0"}
    )
    fields = {
        "format": FORMAT,
        "name": "pictures",
        "kind": "frames",
        "phases": ["green", "red"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    finish(folder, Manifest(**fields, splits={"own": {"train": ["v"]}}, videos={"v": entry}))
    tiny_model(backbone=sm.ModelConfig.preset("tiny").backbone, d_feature=None, n_phases=2).save(
        tmp_path / "model"
    )
    results = write_page(inspect_video(str(tmp_path / "model"), folder, "v", {}, None, "cpu"), tmp_path)
    assert len(results["planes"]["blocks"]) == 2 and (tmp_path / "out" / "figures" / "decay.svg").is_file()


def test_a_recognizer_without_slow_paths_has_a_ribbon_beside_others_and_no_views_of_its_own(
    data, tmp_path, monkeypatch
):
    tiny_model().save(tmp_path / "ours")
    tiny_model("without-z").save(tmp_path / "peer")

    def peers_have_none(recognizer):
        return recognizer if recognizer.config.block.slow.rotation is not None else None

    monkeypatch.setattr(sm.SurgicalMamba, "in_pieces", peers_have_none)
    found = inspect_video(str(tmp_path / "ours"), data, "c", {"peer": str(tmp_path / "peer")}, None, "cpu")
    assert list(found.rows) == ["annotated", OWN, "peer"] and list(found.traces) == [OWN]
    assert (
        found.rows["peer"].tolist()
        == predict_video(sm.load(tmp_path / "peer"), found.video, CPU).phase.tolist()
    )
    with pytest.raises(DataError, match=r"is no SurgicalMamba.*--with"):
        inspect_video(str(tmp_path / "peer"), data, "c", {}, None, "cpu")


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--video", "nobody"], 1, "has no video 'nobody'; it has a, b, c, d, e, ..."),
        (["--video", "c", "--block", "2"], 1, "block 2 does not exist"),
        (["--video", "c", "--with", "without a place"], 2, "write NAME=CHECKPOINT or NAME=PREDICTIONS"),
        (["--video", "c", "--with", "this model=x"], 2, "is taken"),
        (["--video", "c", "--with", "x=absent"], 1, "absent does not exist"),
    ],
)
def test_mistakes_are_told_in_one_line_and_nothing_is_written(
    monkeypatch, capsys, data, tmp_path, more, code, message
):
    tiny_model().save(tmp_path / "full")
    arguments = [tmp_path / "full", "--data", data, *more, "--out", tmp_path / "out"]
    ended, printed, complaint = call(monkeypatch, capsys, "inspect", *arguments)
    assert (ended, printed) == (code, "") and message in complaint and not (tmp_path / "out").exists()


def test_a_block_that_does_not_exist_is_refused(data, tmp_path):
    tiny_model().save(tmp_path / "full")
    with pytest.raises(ConfigError, match="has blocks 0 to 1"):
        inspect_video(str(tmp_path / "full"), data, "c", {}, 7, "cpu")
