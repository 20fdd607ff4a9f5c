"""Run an exported recognizer with numpy and onnxruntime alone.

    python run.py --frames frames.npy --out phases.csv        uint8 pictures (n, H, W, 3), see README.md
    python run.py --features features.npy --out phases.csv    float32 vectors (n, d)

The files lie beside this script. Research software, not a medical device."""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from chunks import closes_after  # the file beside this one


class ExportedRecognizer:
    """One stream. `push` takes the next frame's features and returns the phases' logits."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        self.about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.add_session_config_entry(
            "session.force_spinning_stop", "1"
        )  # the graphs share the cores
        self.folder = folder
        self.step = self.open("step.onnx")
        self.encoder = self.open("encode.onnx") if self.about["has_encoder"] else None
        self.closers = [(group, self.open(group["file"])) for group in self.about["closes"]]
        self.state = {
            place["name"]: np.zeros((1, *place["shape"]), np.float32) for place in self.about["state"]
        }
        self.frames_seen = 0

    def open(self, name: str) -> Any:
        providers = onnxruntime.get_available_providers()
        return onnxruntime.InferenceSession(str(self.folder / name), self.options, providers=providers)

    def encode(self, picture: Any) -> Any:
        assert self.encoder is not None, "this recognizer takes features, not pictures"
        return self.encoder.run(None, {"frames": picture[None]})[0][0]

    def push(self, features: Any) -> Any:
        names = [place.name for place in self.step.get_outputs()]
        values = dict(
            zip(names, self.step.run(None, {"features": features[None], **self.state}), strict=True)
        )
        self.state = {name: values[f"next.{name}"] for name in self.state}
        self.frames_seen += 1
        for group, closer in self.closers:
            if closes_after(self.frames_seen, group["chunk_len"], group["clip_len"]):
                names = [f"{path}.{kind}" for kind in ("ssm", "chunk_sum") for path in group["paths"]]
                closed = closer.run(None, {name: self.state[name] for name in names})
                self.state.update(zip(names, closed, strict=True))
        if closes_after(self.frames_seen, self.about["clip_len"], None):
            for name in self.about["emptied_at_clip_end"]:
                self.state[name] = np.zeros_like(self.state[name])
        return values["logits"][0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--frames", type=Path)
    source.add_argument("--features", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    options = parser.parse_args()
    recognizer = ExportedRecognizer(Path(__file__).resolve().parent, options.threads)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        phases = recognizer.about["phases"]
        table.writerow(["frame", "phase", "name", *(f"logit_{k}" for k in range(len(phases)))])
        for number, row in enumerate(np.load(options.frames or options.features, mmap_mode="r")):
            features = recognizer.encode(row) if options.frames else row.astype(np.float32)
            logits = recognizer.push(features)
            phase = int(logits.argmax())
            table.writerow([number, phase, phases[phase], *(f"{value:.7g}" for value in logits)])


if __name__ == "__main__":
    main()
