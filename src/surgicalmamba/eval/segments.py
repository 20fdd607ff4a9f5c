"""Segments: maximal runs of one phase. Edit score, overlap F1, over-segmentation and the latency of
transitions.

Rows without annotation (negative labels) are cut out of truth and prediction alike: a segment ends where they
begin. Nothing here treats any phase as background."""

from dataclasses import dataclass

import numpy as np

from surgicalmamba.eval.pairs import BoolArray, FloatArray, IntArray

BURST_REACH = 3.0
"""Deviations from its peak at which a burst of the intensity at a boundary counts as over: 0.011 of its
height is left."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Runs in order of time: phase, first row and the row after the last."""

    phase: IntArray
    start: IntArray
    stop: IntArray

    def __len__(self) -> int:
        return len(self.phase)

    @property
    def length(self) -> IntArray:
        return self.stop - self.start


def find_segments(labels: IntArray, keep_gaps: bool = False) -> Segments:
    """Maximal runs of equal labels; runs of negative labels are dropped unless `keep_gaps`."""
    start = np.flatnonzero(np.diff(labels, prepend=labels[:1] - 1))
    stop = np.append(start, len(labels))[1:]
    phase = labels[start]
    kept = slice(None) if keep_gaps else phase >= 0
    return Segments(phase[kept], start[kept], stop[kept])


def segment_pair(truth: IntArray, predicted: IntArray) -> tuple[Segments, Segments]:
    """Segments of truth and prediction over the labelled rows."""
    if (truth < 0).any():
        predicted = np.where(truth < 0, truth, predicted)
    return find_segments(truth), find_segments(predicted)


def edit_score(truth: Segments, predicted: Segments) -> float:
    """100 (1 - Levenshtein distance of the two orders of phases / length of the longer)."""
    longer = max(len(truth), len(predicted))
    return 100.0 * (1.0 - _levenshtein(truth.phase, predicted.phase) / longer)


def _levenshtein(first: IntArray, second: IntArray) -> int:
    """Edit distance, bit-parallel after Myers and Hyyro: one column of the table of distances is held as the
    signs of its steps, `up` and `down`, in two long integers. One pass per element of the shorter sequence,
    over the bits of the longer one."""
    text, pattern = (first, second) if len(first) <= len(second) else (second, first)
    where = {}
    for symbol in set(pattern.tolist()):
        bits = np.packbits(pattern == symbol, bitorder="little")
        where[symbol] = int.from_bytes(bits.tobytes(), "little")
    full, last = (1 << len(pattern)) - 1, 1 << (len(pattern) - 1)
    up, down, distance = full, 0, len(pattern)
    for symbol in text.tolist():
        equal = where.get(symbol, 0)
        diagonal = (((equal & up) + up) ^ up) | equal
        right_up, right_down = down | (full & ~(diagonal | up)), up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = right_up << 1 | 1, right_down << 1
        up, down = full & (right_down | ~(equal | down | right_up)), full & right_up & (equal | down)
    return distance


def overlap_counts(truth: Segments, predicted: Segments, threshold: float) -> tuple[int, int, int]:
    """Hits, false alarms and misses at an IoU threshold (0.1, 0.25, 0.5).

    Each predicted segment looks at the annotated segment of its phase with the highest IoU (the earlier one
    if two are equal); it is a hit if that IoU reaches the threshold and no earlier prediction has taken the
    segment."""
    best_iou, best_truth = _best_overlap(truth, predicted)
    claimed = best_truth[(best_iou >= threshold) & (best_iou > 0)]
    hits = len(set(claimed.tolist()))
    return hits, len(predicted) - hits, len(truth) - hits


def _best_overlap(truth: Segments, predicted: Segments) -> tuple[FloatArray, IntArray]:
    """Highest IoU of each predicted segment with an annotated one of its phase, and which. Linear in the
    number of segments: all starts and stops cut the timeline into pieces, and each piece lies in one segment
    of either kind."""
    cuts = np.sort(np.concatenate((truth.start, truth.stop, predicted.start, predicted.stop)))
    cuts = cuts[np.append(True, np.diff(cuts) > 0)]
    left, length = cuts[:-1], np.diff(cuts)
    of_truth = np.searchsorted(truth.start, left, side="right") - 1
    of_predicted = np.searchsorted(predicted.start, left, side="right") - 1
    same = truth.phase[of_truth] == predicted.phase[of_predicted]
    same &= (left < truth.stop[of_truth]) & (left < predicted.stop[of_predicted])
    of_truth, of_predicted, length = of_truth[same], of_predicted[same], length[same]
    iou = length / (truth.length[of_truth] + predicted.length[of_predicted] - length)
    order = np.lexsort((of_truth, -iou, of_predicted))
    _, first = np.unique(of_predicted[order], return_index=True)
    winner = order[first]
    best_iou = np.zeros(len(predicted))
    best_truth = np.full(len(predicted), -1, dtype=np.int64)
    best_iou[of_predicted[winner]] = iou[winner]
    best_truth[of_predicted[winner]] = of_truth[winner]
    return best_iou, best_truth


def overlap_f1(hits: int, false_alarms: int, misses: int) -> float:
    """F1 over segments, in percent."""
    return 100.0 * 2 * hits / (2 * hits + false_alarms + misses)


@dataclass(frozen=True, eq=False)
class Transitions:
    """The annotated changes of phase of one video, and how late each was noticed."""

    row: IntArray
    before: IntArray
    after: IntArray
    delay_rows: FloatArray
    """Positive when the prediction changes late, negative when early, nan when it misses the change."""

    @property
    def missed(self) -> int:
        return int(np.isnan(self.delay_rows).sum())


def find_transitions(truth: Segments, predicted: Segments) -> Transitions:
    """Signed delay of each annotated change of phase, a segment of `before` that ends where one of `after`
    begins.

    The prediction notices it where one of its segments of phase `after` begins, at the earliest when the
    annotated `before` segment begins and before the annotated `after` segment ends. The beginning nearest to
    the change counts, the earlier of two equally near ones. Without any, the change is missed."""
    adjacent = np.flatnonzero(truth.stop[:-1] == truth.start[1:])
    row, after = truth.start[adjacent + 1], truth.phase[adjacent + 1]
    earliest, end = truth.start[adjacent], truth.stop[adjacent + 1]
    delay = np.full(len(adjacent), np.nan)
    for phase in sorted(set(after.tolist())):
        starts = predicted.start[predicted.phase == phase]
        if len(starts) == 0:
            continue
        mine = np.flatnonzero(after == phase)
        position = np.searchsorted(starts, row[mine])
        for candidate in (np.minimum(position, len(starts) - 1), np.maximum(position - 1, 0)):
            start = starts[candidate]
            valid = (start >= earliest[mine]) & (start < end[mine])
            offset = (start - row[mine]).astype(np.float64)
            nearer = valid & ~(np.abs(offset) > np.abs(delay[mine]))  # the second candidate wins a tie
            delay[mine] = np.where(nearer, offset, delay[mine])
    return Transitions(row, truth.phase[adjacent], after, delay)


def near_transition(truth: IntArray, window_rows: int) -> BoolArray:
    """Labelled rows at most `window_rows` before or after an annotated change of phase."""
    labelled = truth >= 0
    changes = np.flatnonzero((truth[1:] != truth[:-1]) & labelled[1:] & labelled[:-1]) + 1
    marks = np.zeros(len(truth) + 1, dtype=np.int64)
    np.add.at(marks, np.maximum(changes - window_rows, 0), 1)
    np.add.at(marks, np.minimum(changes + window_rows, len(truth)), -1)
    return (np.cumsum(marks[:-1]) > 0) & labelled
