"""`study intensity`: views see the past alone; classifiers find a boundary only if the view shows one."""

import numpy as np
import pytest
import torch

from surgicalmamba.errors import ConfigError
from surgicalmamba_lab.studies.intensity import (
    boundary_bounds,
    bounds_table,
    last_frames,
    usual_views,
    with_means,
)


def test_a_window_holds_the_frames_up_to_each_oldest_first():
    x = torch.arange(4.0)[:, None]
    assert last_frames(3)(x).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize("view", usual_views(4, [2, 16]).values())
def test_no_view_sees_the_future(view):
    x = torch.randn(50, 3)
    changed = x.clone()
    changed[30:] += 1
    torch.testing.assert_close(view(changed)[:30], view(x)[:30])


class Video:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(60, 140, 12)
        self.labels = np.repeat(np.arange(12) % 2, lengths).astype(np.int64)
        self.features = np.concatenate(
            [rng.normal(phase, 0.3, (n, 1)) for phase, n in zip(np.arange(12) % 2, lengths, strict=True)]
        )


class Dataset:
    """Two alternating phases with a noisy signal each: only the change is new at a boundary."""

    kind, fps, folder = "features", 1.0, "noisy"

    def __init__(self):
        self.videos = {f"v{i}": Video(i) for i in range(8)}


def test_a_change_is_found_with_memory_and_hardly_in_four_frames():
    views = {"four": last_frames(4), "memory": with_means(4, [8, 32])}
    done = []
    four, memory = boundary_bounds(Dataset(), views, 2.0, 8.0, 2, 2, done.append)
    assert done == list(range(1, 9))
    assert memory.mean("average_precision") > four.mean("average_precision") + 0.2
    assert memory.mean("bce") < four.mean("bce")
    header, first, second = bounds_table([four, memory])
    assert (
        header[1] == "cross-entropy"
        and first[0] == "four"
        and second[1].startswith(f"{memory.mean('bce'):.3f} ± ")
    )


def test_more_folds_than_videos_and_pictures_are_refused():
    with pytest.raises(ConfigError, match="--folds 9: noisy has 8 videos; give 2 to 8"):
        boundary_bounds(Dataset(), {}, 2.0, 8.0, 9, 1, print)
    pictures = Dataset()
    pictures.kind = "frames"
    with pytest.raises(ConfigError, match="holds pictures"):
        boundary_bounds(pictures, {}, 2.0, 8.0, 2, 1, print)
