"""Looking inside while training: the chunks that are recorded, the same answers, what the log and the
command line get."""

import json
import math

import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.core.rotation import regram
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.train.inside import (
    MOST_CHUNKS,
    ChunkSample,
    IntensityMeasures,
    Measured,
    RotationMeasures,
    boundary_frames,
    intensity_measures,
    look_inside,
)
from surgicalmamba.train.losses import transition_target
from surgicalmamba.train.predict import predict_video
from surgicalmamba.train.run import Watcher, resume, train
from toy import StopAfter

CPU = torch.device("cpu")
PATH = {"d_state": 8, "d_head": 8, "chunk_len": 8, "rotation": {"rank": 2, "d_hidden": 4}}


def tiny_model(variant="full"):
    torch.manual_seed(0)
    settings = {
        "d_model": 16,
        "n_blocks": 2,
        "clip_len": 20,
        "block": {"slow": {**PATH, "intensity": {}}, "fast": PATH},
        "head": {"path": PATH},
    }
    return sm.SurgicalMamba(
        sm.ModelConfig(**settings, backbone=None, d_feature=5, n_phases=3).variant(variant)
    ).eval()


@pytest.fixture
def video(toy_dataset):
    return PreparedDataset.open(toy_dataset).videos[
        "v"
    ]  # 48 samples: clips of 20, 20 and 8, six chunks of eight


def test_answers_are_the_same_bit_for_bit_and_nothing_is_left_in_the_model(video):
    model = tiny_model()
    plain = predict_video(model, video, CPU)
    with look_inside(model) as inside:
        watched = predict_video(model, video, CPU, inside.observe)
    assert np.array_equal(plain.probabilities, watched.probabilities) and np.array_equal(
        plain.intensity, watched.intensity
    )
    assert not any("factors" in vars(part) for part in model.modules())
    with pytest.raises(RuntimeError, match="stop"), look_inside(model):
        raise RuntimeError("stop")
    assert not any("factors" in vars(part) for part in model.modules())


def test_every_path_is_seen_at_its_own_chunks(video):
    model = tiny_model()
    with look_inside(model) as inside:
        predict_video(model, video, CPU, inside.observe)
    # the slow paths close a chunk every eight samples; fast paths and head after 8 and 16 of a clip of 20,
    # and none at a clip's end
    assert {name: sample.seen for name, sample in inside.chunks.items()} == {
        "slow0": 6,
        "slow1": 6,
        "fast0": 5,
        "fast1": 5,
        "head": 5,
    }


def test_the_rotations_seen_are_those_that_turned_the_state(video):
    model, given, turned = tiny_model(), [], []
    path = model.blocks[1].fast
    close = path.close_chunk

    def watch(state, lanes):
        after = close(state, lanes)
        given.append(state.ssm)
        turned.append(after.ssm)
        return after

    path.close_chunk = watch
    with look_inside(model) as inside:
        predict_video(model, video, CPU, inside.observe)
    planes = inside.planes()["fast1"]
    rotated = regram(torch.cat(given), planes.U, planes.V, planes.theta, "dense")
    torch.testing.assert_close(rotated, torch.cat(turned), rtol=1e-4, atol=1e-6)


def test_the_measured_intensity_is_that_of_every_block_over_all_videos(toy_dataset):
    videos = [PreparedDataset.open(toy_dataset).videos[name] for name in ("v", "w")]
    model = tiny_model()
    targets = [transition_target(torch.from_numpy(v.labels.copy())).double().numpy() for v in videos]
    frames = boundary_frames([v.labels for v in videos], targets, 1.0, 2.0, 12.0)
    with look_inside(model) as inside:
        for one in videos:
            predict_video(model, one, CPU, inside.observe)
    with torch.inference_mode():
        whole = [
            model.forward_features(torch.from_numpy(np.array(v.features))[None]).intensity_logits[0]
            for v in videos
        ]
    found = inside.measure(frames).intensities
    for block, measures in enumerate(found):
        expected = intensity_measures(torch.cat(whole)[:, block].double().numpy(), frames)
        assert vars(measures) == pytest.approx(vars(expected), rel=1e-4, nan_ok=True)
    assert len(found) == 2


def test_a_bounded_sample_takes_every_chunk_with_the_same_chance_and_the_same_ones_every_time():
    def kept(most, n_chunks):
        sample = ChunkSample(most)
        for chunk in range(n_chunks):
            sample.add(torch.full((1, 1, 1), float(chunk)))
        return [int(summary) for summary in sample.kept]

    assert kept(4, 3) == [0, 1, 2] == kept(None, 3) and kept(4, 100) == kept(4, 100)
    quarters = np.histogram(kept(400, 4000), bins=4, range=(0, 4000))[0]
    assert len(set(kept(400, 4000))) == 400 and (abs(quarters - 100) < 30).all()  # a deviation is 8.7


def test_no_more_chunks_are_kept_than_the_bound_however_long_the_videos(video):
    model = tiny_model()
    with look_inside(model, most_chunks=2) as inside:
        predict_video(model, video, CPU, inside.observe)
    assert {len(planes) for planes in inside.planes().values()} == {2} and MOST_CHUNKS == 64


@pytest.mark.parametrize(
    ("variant", "paths"),
    [("without-z", set()), ("without-fast", {"slow0", "slow1", "head"}), ("vanilla-mamba2", set())],
)
def test_a_variant_shows_what_it_has(variant, paths, video):
    model = tiny_model(variant)
    with look_inside(model) as inside:
        predict_video(model, video, CPU, inside.observe)
    frames = boundary_frames([video.labels], [np.zeros(48)], 1.0, 2.0, 12.0)
    measured = inside.measure(frames)
    assert set(measured.rotations) == paths and len(measured.intensities) == (
        0 if variant == "vanilla-mamba2" else 2
    )


@pytest.mark.parametrize("variant", ["constant-z", "pairs-z"])
def test_controls_of_the_rotation_show_what_they_are(variant, video):
    model = tiny_model(variant)
    with look_inside(model) as inside:
        predict_video(model, video, CPU, inside.observe)
    found = inside.measure(boundary_frames([video.labels], [np.zeros(48)], 1.0, 2.0, 12.0)).rotations["slow0"]
    assert found.plane_similarity == pytest.approx(1)  # neither ever changes its planes
    assert (
        found.content_dependence == pytest.approx(0, abs=1e-6)
        if variant == "constant-z"
        else found.content_dependence > 0.1
    )


ROTATION = RotationMeasures(0.001, 0.03, 0.21, 0.1, 0.74, 0.9)


def test_the_line_for_people_has_means_over_blocks():
    other = RotationMeasures(0.001, 0.05, 0.41, 0.1, 0.76, 0.9)
    intensity = IntensityMeasures(0.02, 0.3, 0.41, 0.08, 0.1, 0.2)
    measured = Measured({"slow0": ROTATION, "slow1": other, "head": ROTATION}, [intensity])
    assert (
        measured.line()
        == "slow theta 0.04/0.31 content 0.75, head theta 0.03/0.21 content 0.74, "
        "intensity AP 0.41 (chance 0.08)"
    )
    assert Measured({}, []).line() == "" and Measured({}, []).values() == {}


def test_values_that_could_not_be_measured_are_not_logged():
    values = Measured({"slow0": RotationMeasures(0.1, 0.2, 0.3, 0.2, math.nan, math.nan)}, []).values()
    assert values == {
        "slow0.theta_q10": 0.1,
        "slow0.theta_q50": 0.2,
        "slow0.theta_q90": 0.3,
        "slow0.theta_mean": 0.2,
    }


class Lines(Watcher):
    def __init__(self):
        self.lines = []

    def inside(self, epoch, text):
        self.lines.append((epoch, text))


def entries(run, kind):
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry for entry in found if entry["kind"] == kind]


def test_a_run_logs_a_look_inside_after_every_validation(settings, tmp_path):
    lines = Lines()
    train(settings(epochs=3, validate_every=2), watcher=lines)
    logged = entries(tmp_path / "run", "inside")
    assert [entry["step"] for entry in logged] == [1, 2] == [epoch for epoch, _ in lines.lines]
    expected = {
        f"{path}.{name}"
        for path in ("slow0", "fast0", "head")
        for name in RotationMeasures.__dataclass_fields__
    }
    assert (
        set(logged[0])
        >= {"kind", "step", "intensity0.average_precision", "intensity0.bce", "intensity0.bce_of_constant"}
        | expected
    )
    assert (
        lines.lines[0][1].startswith("slow theta ")
        and logged[0]["slow0.theta_q50"] != logged[1]["slow0.theta_q50"]
    )


def test_the_log_of_a_resumed_run_has_the_same_looks_inside(settings, tmp_path):
    train(settings(run=str(tmp_path / "whole")))
    with pytest.raises(KeyboardInterrupt):
        train(settings(run=str(tmp_path / "cut")), watcher=StopAfter(9))
    resume(tmp_path / "cut")
    assert entries(tmp_path / "whole", "inside") == entries(tmp_path / "cut", "inside") != []


def test_there_is_nothing_to_look_into_in_a_peer(settings, tmp_path):
    lines = Lines()
    train(settings(recognizer={"name": "lstm", "d_hidden": 8}, epochs=1), watcher=lines)
    assert entries(tmp_path / "run", "inside") == [] == lines.lines and entries(tmp_path / "run", "epoch")


def test_tensorboard_has_the_measures(settings, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(settings(epochs=1))
    board = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert {
        "inside/slow0.theta_q50",
        "inside/head.content_dependence",
        "inside/intensity0.average_precision",
    } <= set(board.Tags()["scalars"])
