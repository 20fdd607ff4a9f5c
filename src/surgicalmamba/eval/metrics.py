"""The metric functions under one name: `surgicalmamba.metrics`. docs/metrics.md explains each with worked
examples.

Percentages throughout, except log loss (nats), latency (seconds or rows) and over-segmentation (a ratio). nan
means undefined."""

from surgicalmamba.eval.compare import (
    Comparison,
    SpreadComparison,
    compare,
    compare_spread,
    verdict,
    wilcoxon,
)
from surgicalmamba.eval.frame import (
    RULES,
    Cells,
    RelaxedRules,
    RelaxedVideo,
    Reliability,
    accuracy,
    average_precision,
    average_precisions,
    balanced_accuracy,
    cell_scores,
    confusion_matrices,
    confusion_matrix,
    forgiven_rows,
    inflated_f1,
    log_losses,
    reliability,
    rules_for,
    score_relaxed,
    summarise_each_phase,
    summarise_phases,
    summarise_videos,
)
from surgicalmamba.eval.pairs import VideoPair, make_pair
from surgicalmamba.eval.protocols import PROTOCOLS, score, score_runs, usual_protocol
from surgicalmamba.eval.score import Report, Score, Settings
from surgicalmamba.eval.segments import (
    Segments,
    Transitions,
    edit_score,
    find_segments,
    find_transitions,
    near_transition,
    overlap_counts,
    overlap_f1,
    segment_pair,
)

__all__ = [
    "PROTOCOLS", "RULES", "Cells", "Comparison", "RelaxedRules", "RelaxedVideo", "Reliability", "Report",
    "Score", "Segments", "Settings", "SpreadComparison", "Transitions", "VideoPair", "accuracy",
    "average_precision", "average_precisions", "balanced_accuracy", "cell_scores", "compare",
    "compare_spread", "confusion_matrices", "confusion_matrix", "edit_score", "find_segments",
    "find_transitions", "forgiven_rows", "inflated_f1", "log_losses", "make_pair", "near_transition",
    "overlap_counts", "overlap_f1", "reliability", "rules_for", "score", "score_relaxed", "score_runs",
    "segment_pair", "summarise_each_phase", "summarise_phases", "summarise_videos", "usual_protocol",
    "verdict", "wilcoxon",
]
