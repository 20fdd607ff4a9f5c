"""A number that is not finite stops a run with one line: video, clip, block, and the last good state."""

import re

import numpy as np
import pytest
import torch

from surgicalmamba.data.clips import ClipBatch
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.errors import NonFiniteError
from surgicalmamba.model.recognizer import Output
from surgicalmamba.train.config import LossSettings
from surgicalmamba.train.distributed import World
from surgicalmamba.train.loop import Clip, explain, gradient_error
from surgicalmamba.train.losses import Objective
from surgicalmamba.train.run import build_trainer, fit_network, open_dataset, train


@pytest.fixture
def feature_of_c(monkeypatch):
    """feature_of_c(value) puts a value into sample 27 of video c, which is in its second clip of twenty."""
    real = PreparedVideo.features.func

    def put(value):
        def features(video):
            values = np.array(real(video))
            if video.id == "c":
                values[27, 0] = value
            return values

        monkeypatch.setattr(PreparedVideo, "features", property(features))

    return put


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (3e38, r"the projector gives a NaN or infinity at lane \d, frame 27"),
        (np.nan, r"features hold a NaN or infinity at lane \d, frame 27"),
    ],
)
def test_a_run_stops_and_names_video_clip_block_and_the_last_good_state(
    settings, tmp_path, feature_of_c, value, what
):
    feature_of_c(value)
    with pytest.raises(NonFiniteError) as caught:
        train(settings(save_every=1))
    message = str(caught.value)
    assert re.match(what, message) and "\n" not in message
    assert "This is video c, clip 2 (samples 20 to 39); update " in message
    update = int(re.search(r"update (\d+)", message)[1])
    assert message.endswith(f"The last good state is {tmp_path / 'run' / 'states' / f'{update:08d}'}.")


def window(logits, intensity):
    """One clip of two lanes, three frames each: video a from its start, video b from its fourth sample."""
    labels = np.zeros((2, 3), dtype=np.int64)
    yes = np.ones((2, 3), dtype=bool)
    batch = ClipBatch(
        np.zeros((2, 3, 5), np.float32), labels, yes, yes[:, 0], yes[:, 0], np.array([0, 3]), ("a", "b"), None
    )
    output = Output(logits, intensity, None)
    return [
        Clip(
            batch,
            torch.zeros(2, 3, 5),
            None,
            output,
            torch.zeros(2, 3, dtype=torch.long),
            torch.ones(2, 3),
            None,
        )
    ]


class Finite:
    """A recognizer that finds nothing wrong."""

    def forward_features(self, features, state=None, n_frames=None):
        return None


def test_a_loss_too_large_for_finite_logits_names_term_lane_and_block():
    objective = Objective(LossSettings(), None)
    logits = torch.zeros(2, 3, 4)
    logits[1, 2] = torch.tensor([-3e38, 3e38, 0.0, 0.0])
    text = str(explain(Finite(), objective, window(logits, torch.zeros(2, 3, 2)), update=7))
    assert text == (
        "the cross_entropy loss is not finite, from logits of the head up to 3e+38. "
        "This is video b, clip 2 (samples 3 to 5); update 7."
    )
    intensity = torch.zeros(2, 3, 2)
    intensity[0, :, 1] = -3e38  # the target is one
    text = str(explain(Finite(), objective, window(torch.zeros(2, 3, 4), intensity), update=7))
    assert text.startswith("the transition loss is not finite, from intensity logits of block 1 up to 3e+38.")
    assert text.endswith("This is video a, clip 1 (samples 0 to 2); update 7.")


def test_a_gradient_that_is_not_finite_names_weight_block_and_every_clip_behind_it(settings):
    config, dataset = open_dataset(settings())
    config = fit_network(config, dataset)
    trainer = build_trainer(config, PreparedDataset.open(config.data.path), torch.device("cpu"), World(0, 1))
    trainer.model.blocks[0].slow.A_log.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(
        NonFiniteError,
        match=r"gradient of 'blocks\.0\.slow\.A_log' in block 0 is not finite.* clip 1 \(samples 0 to 19\)",
    ):
        trainer.run_epoch(lambda trainer, losses: None)
    text = str(gradient_error("head.classifier.bias", window(torch.zeros(2, 3, 4), None), 3))
    assert (
        "in the head is not finite. It comes from video a, clip 1 (samples 0 to 2), "
        "video b, clip 2 (samples 3 to 5); update 3."
        in text
    )
