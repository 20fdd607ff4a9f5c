"""The paper's published rows, as data with sources and warnings (`published/<dataset>.yaml`), and one's own
row beside them."""

from dataclasses import dataclass
from importlib.resources import files

from surgicalmamba.errors import ConfigError
from surgicalmamba.eval.score import Json, Report, to_json

_SHIPPED = files("surgicalmamba.eval").joinpath("published")

Value = tuple[float, float | None]
"""A mean and its printed spread, where there is one."""


@dataclass(frozen=True)
class PublishedRow:
    """One line of a results table."""

    method: str
    values: dict[str, Value]
    warning: str | None = None

    def as_dict(self) -> dict[str, Json]:
        entry: dict[str, Json] = {"method": self.method}
        for metric, (mean, spread) in self.values.items():
            entry[metric] = to_json({"mean": mean, "spread": spread})
        return entry if self.warning is None else entry | {"warning": self.warning}


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
            own = own_rows(block, report) if report is not None else []
            entry: dict[str, Json] = {"title": block.title, "protocols": list(block.protocols)}
            entry |= {"warnings": list(block.warnings), "rows": [row.as_dict() for row in block.rows]}
            blocks.append(entry | {"own_rows": [row.as_dict() for row in own]})
        return {"dataset": self.dataset, "source": self.source, "blocks": blocks}


def published_datasets() -> list[str]:
    """Datasets with published rows."""
    names = (entry.name for entry in _SHIPPED.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


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
    """One's own numbers under each protocol of a block, with the spread that the field prints: over videos
    for accuracy, over phase means for the rest. Average precision is pooled, so its spread over videos
    belongs to a row of its own."""
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
            it = metrics["map_by_video"]
            rows.append(PublishedRow("yours, map per video", {"map": (it["mean"], it["std_videos"])}))
    return rows
