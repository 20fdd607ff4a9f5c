"""The paper's published rows, as data with sources and warnings (`published/<dataset>.yaml`), and one's own row beside them."""

from dataclasses import dataclass
from importlib.resources import files

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.score import Json, Report

_SHIPPED = files("surgicalmamba.eval").joinpath("published")

Value = tuple[float, float | None]
"""A mean and its printed spread, where there is one."""


@dataclass(frozen=True)
class PublishedRow:
    """One line of a results table."""

    method: str
    values: dict[str, Value]
    warning: str | None = None


@dataclass(frozen=True)
class PublishedBlock:
    """Rows that are printed under one heading; `protocols[0]` is the one that matches them best."""

    title: str
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]
    warnings: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True)
class PublishedTable:
    """All published rows of a dataset."""

    dataset: str
    source: str
    blocks: tuple[PublishedBlock, ...]

    @property
    def protocols(self) -> list[str]:
        """Every protocol that a row of one's own needs, each once."""
        return list(dict.fromkeys(name for block in self.blocks for name in block.protocols))

    def as_dict(self, report: Report | None = None) -> dict[str, Json]:
        """JSON form, with one's own rows under `own_rows` where a report is given."""
        blocks: list[Json] = []
        for block in self.blocks:
            entry: dict[str, Json] = {"title": block.title, "protocols": list(block.protocols), "warnings": list(block.warnings)}
            entry["rows"] = [_row_json(row) for row in block.rows]
            entry["own_rows"] = [_row_json(row) for row in own_rows(block, report)] if report is not None else []
            blocks.append(entry)
        return {"dataset": self.dataset, "source": self.source, "blocks": blocks}


def published_datasets() -> list[str]:
    """Datasets with published rows."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_published(dataset: str) -> PublishedTable:
    """The rows of one dataset."""
    known = published_datasets()
    if dataset not in known:
        raise ConfigError(f"no published rows for {dataset!r}; there are some for {', '.join(known)}.")
    return _table(f"{dataset}.yaml")


def load_published_ablation() -> PublishedTable:
    """The paper's component ablation; its rows have the names of `study ablation`, the full model first."""
    return _table("ablation/cholec80.yaml")


def _table(file: str) -> PublishedTable:
    import yaml

    document = yaml.safe_load(_SHIPPED.joinpath(file).read_text(encoding="utf-8"))
    blocks = tuple(
        PublishedBlock(
            title=block["title"],
            protocols=tuple(block["protocols"]),
            metrics=tuple(block["metrics"]),
            warnings=tuple(block["warnings"]),
            rows=tuple(_row(row, block["metrics"]) for row in block["rows"]),
        )
        for block in document["blocks"]
    )
    return PublishedTable(document["dataset"], document["source"], blocks)


def _row(row: dict[str, object], metrics: list[str]) -> PublishedRow:
    values: dict[str, Value] = {}
    for metric in metrics:
        pair = row.get(metric)
        if isinstance(pair, list):
            values[metric] = (float(pair[0]), float(pair[1]) if len(pair) > 1 else None)
    warning = row.get("warning")
    return PublishedRow(str(row["method"]), values, str(warning) if warning is not None else None)


def own_rows(block: PublishedBlock, report: Report) -> list[PublishedRow]:
    """One's own numbers under each protocol of a block, with the spread that the field prints: over videos for accuracy, over phase
    means for the rest. Average precision is pooled, so its spread over videos belongs to a row of its own."""
    rows = []
    for protocol in block.protocols:
        if protocol not in report.scores:
            continue
        metrics = report.scores[protocol].metrics
        values: dict[str, Value] = {}
        for metric in block.metrics:
            if metric in metrics:
                summary = metrics[metric]
                spread = summary.get("std_phases", summary.get("std_videos"))
                values[metric] = (summary["mean"], spread)
        rows.append(PublishedRow(f"yours, {protocol}", values))
        if "map_by_video" in metrics and "map" in block.metrics:
            by_video = metrics["map_by_video"]
            rows.append(PublishedRow("yours, map per video", {"map": (by_video["mean"], by_video["std_videos"])}))
    return rows


def _row_json(row: PublishedRow) -> dict[str, Json]:
    entry: dict[str, Json] = {"method": row.method}
    for metric, (mean, spread) in row.values.items():
        entry[metric] = {"mean": mean if mean == mean else None, "spread": spread if spread is not None and spread == spread else None}
    if row.warning is not None:
        entry["warning"] = row.warning
    return entry
