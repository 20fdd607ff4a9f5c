"""A recognizer over prepared videos: probabilities for every sample, as they would come live."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.data.clips import read_frame
from surgicalmamba.data.store import PreparedDataset, PreparedVideo
from surgicalmamba.data.transforms import WholeFrame, normalise
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.predictions import RunInfo, VideoPrediction, write_predictions, write_run
from surgicalmamba.model.checkpoint import best_of, load
from surgicalmamba.model.recognizer import AnyRecognizer, Output
from surgicalmamba.train.distributed import pick_device


def features_of(model: AnyRecognizer, video: PreparedVideo, start: int, stop: int, device: torch.device) -> Tensor:
    """Features (1, l, d) of samples start to stop: stored ones, or the backbone's."""
    if video.kind == "features":
        return torch.from_numpy(np.array(video.features[start:stop]))[None].to(device)
    assert model.config.backbone is not None
    transform = WholeFrame(model.config.backbone.image_size)
    frames = np.empty((stop - start, transform.image_size, transform.image_size, 3), np.uint8)
    draws = transform.draw(np.random.default_rng(0), stop - start)
    for i in range(stop - start):
        transform.apply(read_frame(video, start + i, transform.decode_side), draws[i], frames[i])
    pixels = normalise(torch.from_numpy(frames).to(device), model.config.backbone.mean_rgb, model.config.backbone.std_rgb)
    return model.encode(pixels)[None]


@torch.inference_mode()
def predict_video(
    model: AnyRecognizer, video: PreparedVideo, device: torch.device, observe: Callable[[Output[Any]], None] | None = None
) -> VideoPrediction:
    """One video from its first sample to its last. Frame by frame gives the same numbers; clips are only faster.

    `observe` is called with the output of every clip."""
    state = model.initial_state(1)
    probabilities, intensities = [], []
    for start in range(0, video.n_samples, model.config.clip_len):
        stop = min(start + model.config.clip_len, video.n_samples)
        output = model.forward_features(features_of(model, video, start, stop, device), state)
        state = output.state
        if observe is not None:
            observe(output)
        probabilities.append(torch.softmax(output.logits[0].double(), -1).cpu())
        if output.intensity_logits is not None:
            intensities.append(torch.sigmoid(output.intensity_logits[0].double()).mean(-1).cpu())
    table = torch.cat(probabilities).numpy()
    intensity = torch.cat(intensities).numpy() if intensities else None
    return VideoPrediction(video.table.frame, video.time_s, table.argmax(-1), table, intensity)


@dataclass(frozen=True)
class Predictor:
    """One checkpoint over one part of a prepared dataset, into one folder of prediction files."""

    model: AnyRecognizer
    dataset: PreparedDataset
    videos: list[PreparedVideo]
    out: Path
    info: RunInfo
    device: torch.device

    @classmethod
    def open(cls, checkpoint: str, data: Path, split: str, out: Path, device: str) -> "Predictor":
        """Load and check everything before the first video: phases must be those the model was trained for, features of its width."""
        source = best_of(checkpoint)
        model = load(source)
        dataset = PreparedDataset.open(data)
        if model.config.phases is not None and model.config.phases != dataset.phases:
            known, found = ", ".join(model.config.phases), ", ".join(dataset.phases)
            raise DataError(f"{checkpoint} was trained for phases {known}; {data} has {found}. Use a dataset with the same phases.")
        if dataset.kind == "features" and dataset.d_feature != model.feature_width:
            widths = f"{data} has features of width {dataset.d_feature}, {checkpoint} takes {model.feature_width}"
            raise DataError(f"{widths}; prepare them with the same backbone.")
        weights = Path(source) / "model.safetensors"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None
        info = RunInfo(dataset.name, dataset.phases, float(dataset.fps), split, None, digest)
        where = pick_device(device)
        return cls(model.to(where), dataset, videos_of(dataset, split), out, info, where)

    def file_of(self, video: PreparedVideo) -> Path:
        return self.out / f"{video.id}.csv"

    def predict(self, video: PreparedVideo) -> Path:
        """Write a video's file, unless it is there already."""
        file = self.file_of(video)
        if file.is_file():
            return file
        return write_predictions(self.out, video.id, predict_video(self.model, video, self.device), self.vocabulary)

    @property
    def vocabulary(self) -> PhaseVocabulary:
        return PhaseVocabulary(self.dataset.name, self.dataset.phases)

    def finish(self) -> None:
        """Say in run.json where the files come from."""
        write_run(self.out, self.info)


def videos_of(dataset: PreparedDataset, split: str) -> list[PreparedVideo]:
    """`test` is a role of the dataset's first split, `release:test` of a named one, `all` every video."""
    if split == "all":
        return list(dataset.videos.values())
    name, colon, role = split.rpartition(":")
    return dataset.split(name if colon else next(iter(dataset.splits), "paper"), role)
