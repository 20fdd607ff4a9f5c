"""Every setting of a run as rows of text, read from the config models: the one source of names, defaults and descriptions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import yaml

from surgicalmamba.config import Section


@dataclass(frozen=True)
class SettingRow:
    """One setting: its dotted name as an override takes it, its default as YAML, what it does."""

    name: str
    default: str
    description: str


def setting_rows(section: Section, prefix: str = "") -> Iterator[SettingRow]:
    """The settings of a section and, below each part of it, the part's own."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        choices = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type) and issubclass(t, Section)]
        if not choices:
            yield SettingRow(prefix + name, _as_yaml(value), field.description or "")
            continue
        optional = type(None) in get_args(field.annotation)
        text = (field.description or "") + (" May be null." if optional else "")
        yield SettingRow(prefix + name, "null" if value is None else "as below", text)
        if value is not None:
            yield from setting_rows(value, f"{prefix}{name}.")


def _as_yaml(value: object) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def markdown_table(rows: Iterator[SettingRow]) -> str:
    """The rows as a Markdown table."""
    lines = ["| Setting | Default | What it is |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{row.name}` | {row.default} | {row.description} |" for row in rows)])
