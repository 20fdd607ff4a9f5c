"""The loader: what it delivers, that it is the same every time, and that it continues where it stopped."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from surgicalmamba.data.clips import ClipLoader, FeatureNoise, read_frame
from surgicalmamba.data.manifest import FORMAT, Manifest
from surgicalmamba.data.pictures import encode_jpeg
from surgicalmamba.data.store import PreparedDataset, SampleTable, VideoDraft, finish
from surgicalmamba.data.transforms import Augment, AugmentConfig, WholeFrame
from surgicalmamba.errors import DataError, InputError

LENGTHS = {"a": 7, "b": 4, "c": 10, "d": 1, "e": 5}
SIZE = 32


def phases(length):
    """Phase 0 then 1; the second sample is unlabelled."""
    table = np.arange(length) * 2 // max(length, 1)
    table[1:2] = -1
    return table


def colour(number, row):
    """A flat colour that encodes video and sample."""
    return 20 + 40 * number, 15 + 20 * row, 90


def prepared(folder: Path, kind: str) -> PreparedDataset:
    entries = {}
    for number, (name, length) in enumerate(LENGTHS.items()):
        draft = VideoDraft(folder, name, kind)
        if kind == "frames":
            for row in range(length):
                draft.add_image(encode_jpeg(np.full((SIZE, SIZE, 3), colour(number, row), dtype=np.uint8)))
        else:
            draft.set_features(np.array([[number, row, 0.5] for row in range(length)], dtype=np.float32))
        rows = np.arange(length)
        entries[name] = draft.commit(
            SampleTable(rows, rows.astype(float), phases(length)), {"sources": {}, "settings_sha256": "0"}
        )
    fields = {
        "format": FORMAT,
        "name": "toy",
        "kind": kind,
        "phases": ["x", "y"],
        "fps": "1",
        "source": "",
        "settings": {},
    }
    finish(folder, Manifest(**fields, splits={"own": {"train": list(LENGTHS)}}, videos=entries))
    return PreparedDataset.open(folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("images"), "frames").split("own", "train")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("features"), "features").split("own", "train")


def load(videos, **changes):
    transform = WholeFrame(SIZE) if videos[0].kind == "frames" else None
    return ClipLoader(videos, **{"n_lanes": 2, "clip_len": 3, "transform": transform, "seed": 4, **changes})


def as_bytes(batch):
    target = b"" if batch.target is None else batch.target.tobytes()
    arrays = (batch.frames, batch.labels, batch.is_frame, batch.starts, batch.ends, batch.first_sample)
    return b"".join(array.tobytes() for array in arrays) + target + repr(batch.videos).encode()


def test_frames_labels_and_marks_belong_together(images):
    seen = {name: [] for name in LENGTHS}
    for batch in load(images):
        assert batch.frames.shape == (2, 3, SIZE, SIZE, 3) and batch.frames.dtype == np.uint8
        for lane, name in enumerate(batch.videos):
            n = int(batch.is_frame[lane].sum())
            assert batch.is_frame[lane].tolist() == [True] * n + [False] * (3 - n)  # padding only at the end
            assert (batch.labels[lane, n:] == -1).all() and (batch.frames[lane, n:] == 0).all()
            if name is None:
                assert n == 0 and not batch.starts[lane] and not batch.ends[lane]
                continue
            first = int(batch.first_sample[lane])
            assert batch.starts[lane] == (first == 0) and batch.ends[lane] == (first + n == LENGTHS[name])
            assert batch.labels[lane, :n].tolist() == phases(LENGTHS[name])[first : first + n].tolist()
            number = list(LENGTHS).index(name)
            for i in range(n):
                difference = batch.frames[lane, i].astype(int) - colour(number, first + i)
                assert np.abs(difference).max() <= 2  # what JPEG loses
            assert seen[name] == list(range(first))
            seen[name] += range(first, first + n)
    assert {name: len(rows) for name, rows in seen.items()} == LENGTHS


def test_unlabelled_frames_are_frames_without_a_label(images):
    batch = next(b for b in load(images, n_lanes=1, shuffle=False) if b.videos == ("a",))
    assert batch.is_frame.tolist() == [[True, True, True]]
    assert batch.labels.tolist() == [[0, -1, 0]]


def test_without_shuffling_videos_come_in_the_given_order(images):
    first = [batch.videos[0] for batch in load(images, n_lanes=1, shuffle=False) if batch.starts[0]]
    assert first == list(LENGTHS)


def test_features_come_as_they_are_stored(features):
    rows = {name: [] for name in LENGTHS}
    for batch in load(features):
        assert batch.frames.dtype == np.float32 and batch.frames.shape == (2, 3, 3)
        for lane, name in enumerate(batch.videos):
            if name is not None:
                rows[name] += batch.frames[lane][batch.is_frame[lane]].tolist()
            assert (batch.frames[lane][~batch.is_frame[lane]] == 0).all()
    assert rows == {
        name: [[number, row, 0.5] for row in range(n)] for number, (name, n) in enumerate(LENGTHS.items())
    }


def test_feature_dropout_zeroes_its_share_anew_every_epoch_and_the_same_for_the_same_seed(features):
    whole, loader, again = (load(features, disturb=FeatureNoise(dropout=p)) for p in (0.0, 0.4, 0.4))
    plain, first = ([batch.frames for batch in source] for source in (whole, loader))
    second = [batch.frames for batch in loader]
    assert all(np.array_equal(a, b.frames) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=False))
    values = [(before[before != 0], after[before != 0]) for before, after in zip(plain, first, strict=True)]
    before, after = (np.concatenate(part) for part in zip(*values, strict=True))
    assert np.array_equal(after[after != 0], before[after != 0])
    assert 0.2 < (after == 0).mean() < 0.6


@pytest.mark.parametrize("draw", ["clip", "frame"])
def test_workers_and_read_ahead_change_no_byte(images, draw):
    transform = Augment(AugmentConfig(draw=draw), SIZE)
    reference = [as_bytes(b) for b in load(images, transform=transform, workers=1, prefetch=0)]
    for workers, prefetch in ((1, 3), (4, 0), (3, 5)):
        assert [
            as_bytes(b) for b in load(images, transform=transform, workers=workers, prefetch=prefetch)
        ] == reference


def test_epochs_differ_and_repeat_with_the_seed(images):
    loader, again, other = load(images), load(images), load(images, seed=5)
    epochs = [[as_bytes(b) for b in loader] for _ in range(2)]
    assert epochs[0] != epochs[1] and loader.epoch == 2
    assert [[as_bytes(b) for b in again] for _ in range(2)] == epochs
    assert [as_bytes(b) for b in other] != epochs[0]


def test_augmentation_differs_between_epochs_and_clips(images):
    loader = load(images, n_lanes=1, shuffle=False, transform=Augment(AugmentConfig(), SIZE))
    first, second = ([b.frames[0, 0] for b in loader] for _ in range(2))
    assert (first[0] != second[0]).any()


@pytest.mark.parametrize("kind", ["images", "features"])
def test_a_restored_loader_continues_with_exactly_the_batch_that_would_have_come(kind, request):
    videos = request.getfixturevalue(kind)
    changes = {"transform": Augment(AugmentConfig(draw="frame"), SIZE)} if kind == "images" else {}
    loader = load(videos, **changes)
    two_epochs = [as_bytes(b) for _ in range(2) for b in loader]
    n_first = len(load(videos, **changes))
    for taken in range(n_first + 3):
        running = load(videos, **changes)
        batches = (b for _ in range(2) for b in running)
        for _ in range(taken):
            next(batches)
        state = json.loads(json.dumps(running.state_dict()))  # through a file
        batches.close()
        restored = load(videos, workers=1, prefetch=0, **changes)
        restored.load_state_dict(state)
        rest = [as_bytes(b) for b in restored]
        if restored.epoch < 2:
            rest += [as_bytes(b) for b in restored]
        assert rest == two_epochs[taken:], taken


@pytest.mark.parametrize(
    "change",
    [{"n_lanes": 3}, {"clip_len": 4}, {"seed": 9}, {"shuffle": False}, {"transform": WholeFrame(64)}],
)
def test_a_state_of_other_settings_is_refused(images, change):
    state = load(images).state_dict()
    with pytest.raises(DataError, match="taken with other videos"):
        load(images, **change).load_state_dict(state)
    with pytest.raises(DataError, match="taken with other videos"):
        load(images[:-1]).load_state_dict(state)
    with pytest.raises(DataError, match="version"):
        load(images).load_state_dict({**state, "version": 99})


def test_processes_share_the_lanes_and_have_the_same_number_of_steps(features):
    whole = list(load(features, n_lanes=4))
    halves = [list(load(features, n_lanes=2, world_size=2, rank=rank)) for rank in (0, 1)]
    assert len(halves[0]) == len(halves[1]) == len(whole)
    for all_lanes, left, right in zip(whole, *halves, strict=True):
        assert all_lanes.videos == left.videos + right.videos
        np.testing.assert_array_equal(all_lanes.frames, np.concatenate([left.frames, right.frames]))


def test_a_target_is_computed_once_from_the_whole_procedure_and_sliced(features):
    asked = []

    def place(video):
        asked.append(video.id)
        return np.linspace(1, 2, video.n_samples, dtype=np.float32)

    loader = load(features, target=place)
    for _ in range(2):
        for batch in loader:
            for lane, name in enumerate(batch.videos):
                n, first = int(batch.is_frame[lane].sum()), int(batch.first_sample[lane])
                if name is not None:
                    np.testing.assert_array_equal(
                        batch.target[lane, :n],
                        np.linspace(1, 2, LENGTHS[name], dtype=np.float32)[first : first + n],
                    )
                assert (batch.target[lane, n:] == 0).all()
    assert sorted(asked) == sorted(LENGTHS)
    with pytest.raises(InputError, match="one value per sample"):
        next(iter(load(features, target=lambda video: np.zeros(3))))


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("clips")]


def test_no_thread_outlives_an_epoch_or_an_abandoned_one(images):
    list(load(images))
    assert not threads()
    batches = iter(load(images))
    next(batches)
    batches.close()
    assert not threads()


def test_an_unreadable_frame_is_one_line_that_names_the_file(tmp_path):
    videos = prepared(tmp_path, "frames").split("own", "train")
    path = videos[2].frame_path(4)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"00000004.jpg: not a readable image. Run prepare again") as caught:
        list(load(videos))
    assert "\n" not in str(caught.value) and not threads()
    path.unlink()
    with pytest.raises(DataError, match=r"00000004.jpg: cannot be read"):
        list(load(videos))


def test_the_decoder_may_reduce_a_frame_but_never_below_what_is_asked(tmp_path):
    draft = VideoDraft(tmp_path, "v", "frames")
    draft.add_image(encode_jpeg(np.zeros((250, 250, 3), dtype=np.uint8)))
    entry = draft.commit(
        SampleTable(np.array([0]), np.array([0.0]), np.array([0])), {"sources": {}, "settings_sha256": "0"}
    )
    fields = {
        "format": FORMAT,
        "name": "t",
        "kind": "frames",
        "phases": ["x"],
        "fps": "1",
        "source": "",
        "settings": {},
        "splits": {},
    }
    finish(tmp_path, Manifest(**fields, videos={"v": entry}))
    video = PreparedDataset.open(tmp_path).videos["v"]
    assert read_frame(video, 0).shape == (250, 250, 3)
    reduced = read_frame(video, 0, least_side=107)
    assert 107 <= min(reduced.shape[:2]) < 250


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_lanes": 0}, "n_lanes=0"),
        ({"clip_len": 0}, "clip_len=0"),
        ({"workers": 0}, "workers=0"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"rank": 2, "world_size": 2}, "rank=2 is outside 0 to 1"),
        ({"transform": None}, "an image dataset needs a transform"),
    ],
)
def test_impossible_settings_are_refused(images, change, message):
    with pytest.raises(InputError, match=message):
        load(images, **change)


def test_images_and_features_do_not_mix(images, features):
    with pytest.raises(InputError, match="cannot share a batch"):
        load([images[0], features[1]])
    with pytest.raises(InputError, match="takes no transform"):
        load(features, transform=WholeFrame(SIZE))
    with pytest.raises(InputError, match="no videos"):
        ClipLoader([], n_lanes=1, clip_len=1)
