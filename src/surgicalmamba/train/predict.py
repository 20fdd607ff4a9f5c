"""A recognizer over prepared videos: probabilities for every sample, as they would come live."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from surgicalmamba.data.clips import read_frame
from surgicalmamba.data.store import PreparedVideo
from surgicalmamba.data.transforms import WholeFrame, normalise
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.eval.predictions import VideoPrediction, write_predictions
from surgicalmamba.model.surgical_mamba import SurgicalMamba


def features_of(model: SurgicalMamba, video: PreparedVideo, start: int, stop: int, device: torch.device) -> Tensor:
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
def predict_video(model: SurgicalMamba, video: PreparedVideo, device: torch.device) -> VideoPrediction:
    """One video from its first sample to its last. Frame by frame gives the same numbers; clips are only faster."""
    state = model.initial_state(1)
    probabilities, intensities = [], []
    for start in range(0, video.n_samples, model.config.clip_len):
        stop = min(start + model.config.clip_len, video.n_samples)
        output = model.forward_features(features_of(model, video, start, stop, device), state)
        state = output.state
        probabilities.append(torch.softmax(output.logits[0].double(), -1).cpu())
        if output.intensity_logits is not None:
            intensities.append(torch.sigmoid(output.intensity_logits[0].double()).mean(-1).cpu())
    table = torch.cat(probabilities).numpy()
    intensity = torch.cat(intensities).numpy() if intensities else None
    return VideoPrediction(video.table.frame, video.time_s, table.argmax(-1), table, intensity)


def predict_videos(
    model: SurgicalMamba,
    videos: Iterable[PreparedVideo],
    out: Path,
    vocabulary: PhaseVocabulary,
    device: torch.device,
    skip_done: bool = True,
) -> dict[str, Path]:
    """Write one prediction file per video; files that are already there are kept, so an interrupted call can be repeated."""
    was_training = model.training
    model.eval()
    written = {}
    for video in videos:
        file = out / f"{video.id}.csv"
        if not (skip_done and file.is_file()):
            file = write_predictions(out, video.id, predict_video(model, video, device), vocabulary)
        written[video.id] = file
    model.train(was_training)
    return written


