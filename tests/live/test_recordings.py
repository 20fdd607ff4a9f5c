"""Streaming a recording is predicting it: real files, through `prepare` and `predict` on one side and a
session on the other."""

from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import torch

import surgicalmamba as sm
from surgicalmamba.data.pictures import JPEG_QUALITY, Preprocess, encode_jpeg
from surgicalmamba.data.prepare import Request, prepare
from surgicalmamba.data.records import Frame
from surgicalmamba.data.store import PreparedDataset
from surgicalmamba.errors import DataError
from surgicalmamba.live.sources import open_source
from surgicalmamba.model.recognizer import PreprocessConfig
from surgicalmamba.train.config import TrainConfig
from surgicalmamba.train.predict import predict_video
from surgicalmamba.train.run import fit_network


def scene(second, height=120, width=192):
    """A round view on black with shapes that move, so that the margin cut finds another box from time to
    time."""
    rgb = np.zeros((height, width, 3), np.uint8)
    centre = (width // 2 + int(6 * np.sin(second)), height // 2)
    cv2.circle(rgb, centre, 52, (150, 60 + int(40 * np.cos(second / 3)), 50), -1)
    cv2.line(
        rgb,
        centre,
        (centre[0] + int(45 * np.cos(second)), centre[1] + int(45 * np.sin(second))),
        (210, 210, 220),
        7,
    )
    return rgb


def write_video(path, times, fps):
    """H.264 with given presentation times in seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps))
        stream.height, stream.width, stream.pix_fmt = 120, 192, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 30000)
        for time_s in times:
            frame = av.VideoFrame.from_ndarray(scene(float(time_s)))
            frame.pts, frame.time_base = round(time_s * 30000), Fraction(1, 30000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


UNEVEN = np.cumsum(np.random.default_rng(4).choice([0.03, 0.04, 0.4, 1.7], 60))
RECORDINGS = {
    "pal": (np.arange(25 * 24) / 25, 25),
    "ntsc": (np.arange(30 * 20) * 1001 / 30000, Fraction(30000, 1001)),
    "uneven": (UNEVEN - UNEVEN[0], 25),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, picture_model):
    """Every recording prepared as a user's own data, and a model that fits."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "source").mkdir()
    (folder / "source" / "phases.yaml").write_text("phases: [setup, work, close]\n")
    for name, (times, fps) in RECORDINGS.items():
        write_video(folder / "source" / f"{name}.mp4", times, fps)
        (folder / "source" / f"{name}.csv").write_text("start,end,phase\n0,5,setup\n5,10,work\n10,90,close\n")
    outcome = prepare(Request("custom", folder / "source", folder / "data"))
    assert not outcome.failures, outcome.failures
    dataset = PreparedDataset.open(folder / "data")
    config = fit_network(TrainConfig(recognizer=dict(picture_model.config)), dataset).network
    torch.manual_seed(0)
    return folder, dataset, sm.SurgicalMamba(config).eval()


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_streamed_recording_gives_what_predict_gives_on_the_prepared_dataset(prepared, name):
    folder, dataset, model = prepared
    expected = predict_video(model, dataset.videos[name], torch.device("cpu"))
    assert len(expected.frame) >= 15
    source = open_source(
        str(folder / "source" / f"{name}.mp4"), model.config.preprocess.sampling, Fraction(1)
    )
    session, frames, estimates = sm.Session(model), [], []
    for frame in source.frames:
        frames.append(frame.index)
        estimates.append(session.push(frame.rgb))
    assert frames == expected.frame.tolist()
    np.testing.assert_allclose([e.probabilities for e in estimates], expected.probabilities, atol=1e-4)
    np.testing.assert_allclose(
        np.log([e.probabilities for e in estimates]), np.log(expected.probabilities), atol=1e-4
    )
    np.testing.assert_allclose([e.intensity for e in estimates], expected.intensity, atol=1e-4)


def test_every_frame_pushed_by_its_time_gives_the_same_as_the_samples(prepared):
    folder, dataset, model = prepared
    expected = predict_video(model, dataset.videos["pal"], torch.device("cpu"))
    session, estimates = sm.Session(model), []
    with av.open(str(folder / "source" / "pal.mp4")) as container:
        for frame in container.decode(video=0):
            estimates.append(session.push(frame.to_ndarray(format="rgb24"), float(frame.time)))
    shown = [e for e in estimates if e is not None]
    np.testing.assert_allclose([e.time_s for e in shown], expected.time_s, atol=1e-6)
    np.testing.assert_allclose([e.probabilities for e in shown], expected.probabilities, atol=1e-4)


def test_without_the_loss_of_the_stored_jpeg_the_answers_differ(prepared):
    """The tolerance above is tight enough to notice it."""
    folder, dataset, model = prepared
    expected = predict_video(model, dataset.videos["pal"], torch.device("cpu"))
    lossless = sm.SurgicalMamba(
        model.config.with_(preprocess=model.config.preprocess.with_(jpeg_quality=None))
    ).eval()
    lossless.load_state_dict(model.state_dict())
    session = sm.Session(lossless)
    source = open_source(str(folder / "source" / "pal.mp4"), model.config.preprocess.sampling, Fraction(1))
    found = np.array([session.push(frame.rgb).probabilities for frame in source.frames])
    assert np.abs(found - expected.probabilities).max() > 1e-4


def test_a_training_run_writes_down_how_its_pictures_were_prepared(prepared, tmp_path):
    folder, _, model = prepared
    assert model.config.preprocess == PreprocessConfig()
    request = Request(
        "custom",
        folder / "source",
        tmp_path / "other",
        fps=Fraction(1, 2),
        preprocess=Preprocess("none", 100),
    )
    assert not prepare(request).failures
    config = fit_network(
        TrainConfig(recognizer=dict(model.config)), PreparedDataset.open(tmp_path / "other")
    ).network
    expected = PreprocessConfig(box="none", size=100, fps="1/2")
    assert config.preprocess == expected and expected.rate == Fraction(1, 2)
    sm.SurgicalMamba(config).save(tmp_path / "model")
    assert sm.load(tmp_path / "model").config.preprocess == expected


def test_a_checkpoint_that_says_nothing_was_prepared_with_the_defaults_of_prepare():
    plain = PreprocessConfig()
    assert (plain.box, plain.size, plain.jpeg_quality) == (Preprocess().box, Preprocess().size, JPEG_QUALITY)


def frames_of(source):
    return [frame for frame in source.frames if isinstance(frame, Frame)]


def test_a_recording_slower_than_the_model_shows_its_pictures_again(prepared, tmp_path):
    file = write_video(tmp_path / "slow.mp4", np.arange(5) * 2.0, Fraction(1, 2))
    found = frames_of(open_source(str(file), "auto", Fraction(1)))
    assert [(f.index, f.time_s) for f in found] == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
        (2, 4),
        (2, 5),
        (3, 6),
        (3, 7),
        (4, 8),
    ]


def test_a_folder_of_images_is_a_recording(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(encode_jpeg(scene(number)))
    each = frames_of(open_source(str(tmp_path), "auto", Fraction(1)))
    assert [f.index for f in each] == [0, 1, 2, 3, 4, 5]
    dense = frames_of(open_source(str(tmp_path), "auto", Fraction(1), Fraction(3)))
    assert [(f.index, f.time_s) for f in dense] == [(0, 0.0), (3, 1.0)]
    sparse = frames_of(open_source(str(tmp_path), "auto", Fraction(1), Fraction(1, 2)))
    assert [(f.index, f.time_s) for f in sparse] == [(i // 2, i) for i in range(12)]


def test_a_source_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        open_source(str(tmp_path / "nothing.mp4"), "auto", Fraction(1))
