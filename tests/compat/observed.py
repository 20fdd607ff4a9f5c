"""What a version of the package makes of the fixture files, as plain values. make_fixtures.py stored them
in expected.json; the tests compare.

Each function works in a copy of a fixture folder that is also the current directory. `run` executes a
command-line verb there and returns its standard output. Public names and the command line are used,
because modules move between versions."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import surgicalmamba as sm
from surgicalmamba_lab.bench.serve import ServerProcess

Run = Callable[..., str]
CHECKPOINTS = ("features", "pictures", "lstm")
CONFIGS = ("model", "variant", "peer-name", "peer-settings", "peer-resolved", "peer-pictures")
SNAPSHOTS = ("features", "lstm")
DATASETS = {"features": "features", "pictures": "custom"}
"""Prepared datasets and the adapters that made them."""
PREPARED_WITH = {"features": (), "pictures": ("--size", "32")}
LIVE_FRAMES = 13
"""Frames that the server received in the live session before it was killed."""


def outputs(folder: Path) -> dict[str, object]:
    """Name, settings and logits of a checkpoint on 30 frames that cross its chunk and clip boundaries."""
    model = sm.load(folder)
    config = model.config
    shape = (
        (30, config.d_feature)
        if config.backbone is None
        else (30, 3, config.backbone.image_size, config.backbone.image_size)
    )
    frames = torch.arange(float(np.prod(shape))).mul(0.7).sin().reshape(1, *shape)
    with torch.inference_mode():
        out = model.forward_features(frames) if config.backbone is None else model(frames)
    intensity = None if out.intensity_logits is None else out.intensity_logits[0].tolist()
    return {
        "name": model.name,
        "config": config.model_dump(mode="json"),
        "logits": out.logits[0].tolist(),
        "intensity_logits": intensity,
    }


def continued_session(name: str) -> list[object]:
    """The estimates after a snapshot that was taken inside a chunk; a gap in the timestamps follows it."""
    blob = Path(f"sessions/{name}.snapshot").read_bytes()
    session = sm.Session.restore(sm.load(f"checkpoints/{name}"), blob)
    vectors, times = np.load("sessions/vectors.npy"), np.load("sessions/times.npy")
    estimates = [
        session.push_features(vector, time_s)
        for vector, time_s in zip(vectors, times.tolist(), strict=True)
        if time_s > session_end(times)
    ]
    return [None if estimate is None else estimate.as_dict() for estimate in estimates]


def session_end(times: np.ndarray) -> float:
    """Source time of the last frame before the snapshots."""
    return float(times[26])


def resumed_run(run: Run) -> dict[str, object]:
    """The result of a run that is resumed inside its second and last epoch."""
    result = json.loads(run("train", "--resume", "run", "--json"))
    return {"result": result, "best": outputs(Path("run/best")), "last": outputs(Path("run/last"))}


def trained(run: Run, config: str) -> dict[str, object]:
    """One epoch with an old training config."""
    result = json.loads(run("train", "--config", f"configs/{config}.yaml", f"run=trained/{config}", "--json"))
    return {"last_loss": result["last_loss"], "best": outputs(Path(f"trained/{config}/best"))}


def checked(run: Run, dataset: str) -> dict[str, object]:
    """What `check` finds in a prepared dataset, and whether `prepare` still accepts every video of it."""
    source, folder = f"sources/{dataset}", f"datasets/{dataset}"
    report = json.loads(run("check", folder, "--source", source, "--json"))
    arguments = ("--source", source, "--out", folder, *PREPARED_WITH[dataset], "--workers", "1", "--json")
    outcome = json.loads(run("prepare", DATASETS[dataset], *arguments))
    videos = [
        {key: video[key] for key in ("id", "frames", "samples", "labelled")} for video in report["videos"]
    ]
    return {"ok": report["ok"], "videos": videos, "kept": outcome["kept"], "prepared": outcome["prepared"]}


def predicted(run: Run, dataset: str) -> dict[str, list[list[float]]]:
    """Predictions of the checkpoint of that name for every video of a prepared dataset."""
    folders = ("--data", f"datasets/{dataset}", "--out", f"new/{dataset}")
    run("predict", f"checkpoints/{dataset}", *folders, "--split", "all")
    return prediction_rows(Path(f"new/{dataset}"))


def prediction_rows(folder: Path) -> dict[str, list[list[float]]]:
    """Every numeric column of the prediction files of a folder."""
    rows = {}
    for file in sorted(folder.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as stream:
            rows[file.stem] = [
                [float(value) for key, value in row.items() if key != "name"]
                for row in csv.DictReader(stream)
            ]
    return rows


def evaluated(run: Run, dataset: str) -> dict[str, object]:
    """Scores of the stored predictions against the labels of the prepared dataset."""
    folders = ("--labels", f"datasets/{dataset}", "--predictions", f"predictions/{dataset}")
    scores = json.loads(run("evaluate", *folders, "--protocol", "strict", "--json"))["protocols"]["strict"]
    metrics = ("accuracy", "precision", "recall", "f1", "jaccard", "per_phase", "per_video")
    return {name: scores[name] for name in metrics}


def streamed(run: Run) -> list[dict[str, object]]:
    """Estimates of `stream` over a folder of pictures, calibrated and filtered by the stored output stage."""
    arguments = (
        "--model",
        "checkpoints/pictures",
        "--engine",
        "eager",
        "--output-stage",
        "output-stage.json",
    )
    run("stream", "sources/pictures/a", *arguments, "--out", "new/a.jsonl", "--json")
    lines = [json.loads(line) for line in Path("new/a.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = ("type", "latency_ms")
    estimates = [line for line in lines if line["type"] == "estimate"]
    return [{key: line[key] for key in line if key not in measured} for line in estimates]


def pictures() -> list[bytes]:
    """The JPEG files that the server receives, in order."""
    return [file.read_bytes() for file in sorted(Path("sources/pictures").rglob("*.jpg"))]


def start_server() -> ServerProcess:
    """A server on the stored record. It writes a snapshot every five frames, which is inside a chunk."""
    return ServerProcess(Path("checkpoints/pictures"), Path("server"), ("snapshot_frames=5", "commit_ms=20"))


def served(server: ServerProcess, session: str) -> dict[str, object]:
    """A session and its estimates as the HTTP interface shows them."""
    client = sm.Client(server.url)
    view = client.request("GET", f"/v1/sessions/{session}")
    stable = ("name", "life", "fps", "phases", "when_behind", "metadata", "rows", "durable", "segments")
    estimates = client.request("GET", f"/v1/sessions/{session}/estimates?probabilities=true")
    return {"session": {key: view[key] for key in stable}, "estimates": estimates}
