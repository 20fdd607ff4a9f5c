"""Cataract-101: `videos/case_<ID>.mp4`, `annotations.csv` with segment starts of all videos, `videos.csv` with their lengths."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from surgicalmamba.data.adapters.base import Found, PhaseRows, Procedure, VideoAdapter, match_files, pair
from surgicalmamba.data.labels import PhaseVocabulary, Row, RowLabels, integer, read_rows, read_starts, start_labels
from surgicalmamba.errors import DataError


class Cataract101(VideoAdapter):
    """101 cataract operations. The lead-in before the first mark is unlabelled; the last phase holds to the last frame."""

    name = "cataract101"

    def find(self) -> Found:
        videos = match_files(self.source, r"case_([0-9]+)\.mp4", lambda match: f"case_{match[1]}")
        tables = (self._table("annotations.csv"), self._table("videos.csv"))
        found = pair(self, videos, {}, "video named like videos/case_269.mp4")
        return Found([Procedure(p.id, p.media, tables) for p in found.procedures])

    def holds_annotations(self) -> bool:
        return bool(match_files(self.source, r"annotations\.csv", lambda _: ""))

    def _table(self, name: str) -> Path:
        found = match_files(self.source, name.replace(".", r"\."), lambda _: name)
        if name not in found:
            raise DataError(f"{self.source}: {name} is not in it; it comes with Cataract-101's download.")
        return found[name]

    def labels(self, procedure: Procedure) -> RowLabels:
        annotations, lengths = procedure.annotations
        return case_labels(annotations, lengths, procedure.id.removeprefix("case_"), self.vocabulary)

    def phase_rows(self) -> Iterator[PhaseRows]:
        """From the two tables alone, which say each recording's length and rate."""
        annotations, videos = self._table("annotations.csv"), self._table("videos.csv")
        rates = frame_rates(videos)
        for case in read_starts(annotations, self.vocabulary):
            labels = case_labels(annotations, videos, case, self.vocabulary)
            yield PhaseRows(f"case_{case}", labels.phases, rates[case])


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
    return {fields[0]: integer(path, number, fields[1], "frame count") for number, fields in _video_rows(path)}


def frame_rates(path: Path) -> dict[str, Fraction]:
    """Frames per second of each video from videos.csv."""
    rates = {fields[0]: Fraction(integer(path, number, fields[2], "frame rate")) for number, fields in _video_rows(path)}
    if not all(rates.values()):
        raise DataError(f"{path}: a video has 0 frames per second.")
    return rates


def _video_rows(path: Path) -> list[Row]:
    return read_rows(path, ";", ("VideoID", "Frames", "FPS", "Surgeon", "Experience"), 5)
