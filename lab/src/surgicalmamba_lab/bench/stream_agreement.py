"""How often an engine names the same phase as the model in float32, on the videos of a prepared dataset."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.data.clips import read_frame
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.transforms import WholeFrame
from surgicalmamba.engines.engine import Engine
from surgicalmamba.engines.select import open_engine
from surgicalmamba.errors import DataError
from surgicalmamba.model.checkpoint import load
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.train.predict import predict_video, videos_of


@dataclass(frozen=True)
class Agreement:
    """Frames on which an engine, frame by frame with a backbone of its own, says what the model says clip by clip."""

    engine: str
    frames: int
    agreeing: int
    share: float
    largest_probability_difference: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [
            f"{self.engine} names the model's phase on {self.agreeing:,} of {self.frames:,} frames ({100 * self.share:.2f} %); "
            f"largest difference of a probability {self.largest_probability_difference:.3f}"
        ]


def bench_agreement(checkpoint: str, data: Path, split: str, engine_name: str, most_frames: int | None, threads: int) -> Agreement:
    """Compare on every frame of a split, or on the first `most_frames` of each video."""
    torch.set_num_threads(threads)
    model = load(checkpoint)
    dataset = PreparedDataset.open(data)
    engine = open_engine(model, engine_name, threads=threads)
    videos = videos_of(dataset, split)
    if not videos:
        raise DataError(f"{data} has no videos in split {split!r}; name another with --split.")
    frames = agreeing = 0
    largest = 0.0
    for video in videos:
        expected = predict_video(model, video, torch.device("cpu")).probabilities
        assert expected is not None
        expected = expected[:most_frames]
        own = _probabilities(engine, model, video, len(expected))
        frames += len(expected)
        agreeing += int((own.argmax(-1) == expected.argmax(-1)).sum())
        largest = max(largest, float(np.abs(own - expected).max()))
    return Agreement(engine.name, frames, agreeing, agreeing / frames, largest)


def _probabilities(engine: Engine, model: AnyRecognizer, video: PreparedVideo, n_frames: int) -> np.ndarray:
    """A video through an engine as a live session would push it."""
    state, rows = engine.initial_state(1), []
    for features in _vectors(engine, model, video, n_frames):
        output = engine.advance(features, state)
        state = output.state
        rows.append(torch.softmax(output.logits[0].double(), -1))
    return torch.stack(rows).numpy()


def _vectors(engine: Engine, model: AnyRecognizer, video: PreparedVideo, n_frames: int) -> Iterator[Tensor]:
    if video.kind == "features":
        for row in video.features[:n_frames]:
            yield torch.from_numpy(np.array(row))[None]
        return
    assert model.config.backbone is not None
    transform = WholeFrame(model.config.backbone.image_size)
    picture = np.empty((1, transform.image_size, transform.image_size, 3), np.uint8)
    (draw,) = transform.draw(np.random.default_rng(0), 1)
    for number in range(n_frames):
        transform.apply(read_frame(video, number, transform.decode_side), draw, picture[0])
        yield engine.encode(torch.from_numpy(picture))
