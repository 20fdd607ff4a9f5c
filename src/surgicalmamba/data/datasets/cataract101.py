"""Cataract-101: `videos/case_<ID>.mp4`, `annotations.csv` with segment starts of all videos, `videos.csv` with their lengths."""

from pathlib import Path

from surgicalmamba.data.annotations import integer, read_rows, start_labels
from surgicalmamba.data.datasets.base import Found, Procedure, VideoAdapter, match_files, pair
from surgicalmamba.data.labels import RowLabels
from surgicalmamba.data.vocabulary import PhaseVocabulary
from surgicalmamba.errors import DataError


class Cataract101(VideoAdapter):
    """101 cataract operations. The lead-in before the first mark is unlabelled; the last phase holds to the last frame."""

    name = "cataract101"

    def find(self) -> Found:
        videos = match_files(self.source, r"case_([0-9]+)\.mp4", lambda match: f"case_{match[1]}")
        tables = (self._table("annotations.csv"), self._table("videos.csv"))
        found = pair(self, videos, {}, "video named like videos/case_269.mp4")
        return Found([Procedure(p.id, p.media, tables) for p in found.procedures])

    def _table(self, name: str) -> Path:
        found = match_files(self.source, name.replace(".", r"\."), lambda _: name)
        if name not in found:
            raise DataError(f"{self.source}: {name} is not in it; it comes with Cataract-101's download.")
        return found[name]

    def labels(self, procedure: Procedure) -> RowLabels:
        annotations, lengths = procedure.annotations
        return case_labels(annotations, lengths, procedure.id.removeprefix("case_"), self.vocabulary)


def case_labels(annotations: Path, lengths: Path, case: str, vocabulary: PhaseVocabulary) -> RowLabels:
    """Per-frame rows of one case from the two tables; a segment that starts after the last frame is refused."""
    starts = start_labels(annotations, case, vocabulary)
    n_frames = frame_counts(lengths).get(case)
    if n_frames is None:
        raise DataError(f"{lengths}: no row for video {case}, so its length is unknown.")
    if starts.frames[-1] >= n_frames:
        raise DataError(f"{annotations}: video {case} has {n_frames} frames, but a segment starts at frame {starts.frames[-1]}.")
    return starts.rows(n_frames)


def frame_counts(path: Path) -> dict[str, int]:
    """Frames per video from videos.csv."""
    rows = read_rows(path, ";", ("VideoID", "Frames", "FPS", "Surgeon", "Experience"), 5)
    return {fields[0]: integer(path, number, fields[1], "frame count") for number, fields in rows}
