"""Cataract-101: `videos/case_<ID>.mp4`, `annotations.csv` with segment starts of all videos, `videos.csv`
with their lengths."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from surgicalmamba.data.adapters.base import Found, PhaseRows, Procedure, VideoAdapter, match_files, pair
from surgicalmamba.data.labels import (
    PhaseVocabulary,
    RowLabels,
    integer,
    read_rows,
    read_starts,
    start_labels,
)
from surgicalmamba.errors import DataError

_VIDEO_COLUMNS = ("VideoID", "Frames", "FPS", "Surgeon", "Experience")


class Cataract101(VideoAdapter):
    """101 cataract operations. The lead-in before the first mark is unlabelled; the last phase holds to the
    end."""

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
        """From the two tables alone, which hold each recording's length and rate."""
        annotations, videos = self._table("annotations.csv"), self._table("videos.csv")
        rates = _column(videos, 2, "frame rate")
        if not all(rates.values()):
            raise DataError(f"{videos}: a video has 0 frames per second.")
        for case in read_starts(annotations, self.vocabulary):
            labels = case_labels(annotations, videos, case, self.vocabulary)
            yield PhaseRows(f"case_{case}", labels.phases, Fraction(rates[case]))


def case_labels(annotations: Path, lengths: Path, case: str, vocabulary: PhaseVocabulary) -> RowLabels:
    """Per-frame rows of one case from the two tables; a segment that starts after the last frame is an
    error."""
    starts = start_labels(annotations, case, vocabulary)
    n_frames = frame_counts(lengths).get(case)
    if n_frames is None:
        raise DataError(f"{lengths}: no row for video {case}, so its length is unknown.")
    if (last := starts.frames[-1]) >= n_frames:
        problem = f"video {case} has {n_frames} frames, but a segment starts at frame {last}"
        raise DataError(f"{annotations}: {problem}.")
    return starts.rows(n_frames)


def frame_counts(path: Path) -> dict[str, int]:
    """Frames per video from videos.csv."""
    return _column(path, 1, "frame count")


def _column(path: Path, column: int, what: str) -> dict[str, int]:
    rows = read_rows(path, ";", _VIDEO_COLUMNS, len(_VIDEO_COLUMNS))
    return {fields[0]: integer(path, number, fields[column], what) for number, fields in rows}
