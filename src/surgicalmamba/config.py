"""Settings: checked sections, YAML files, `key.sub=value` overrides. Each section stands above its code."""

import difflib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surgicalmamba.errors import ConfigError
from surgicalmamba.files import write_atomic

S = TypeVar("S", bound="Section")
Positive = Annotated[int, Field(gt=0)]

_inside_validation: ContextVar[bool] = ContextVar("inside_validation", default=False)


class Section(BaseModel):
    """A frozen group of settings. A mistake raises ConfigError in one line; an unknown name gets a hint."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            if _inside_validation.get():  # in a nested section: the outermost one reports the full path
                super().__init__(**values)
                return
            token = _inside_validation.set(True)
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(one_line(type(self), error)) from None
            finally:
                _inside_validation.reset(token)

    def with_(self: S, **changes: object) -> S:
        """A copy with some settings changed and everything checked again."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    def overridden(cls, values: dict[str, object], overrides: Sequence[str]) -> dict[str, object]:
        """The unchecked settings of a file with `key.sub=value` overrides applied."""
        return override(values, overrides)


def one_line(section: type[Section], error: ValidationError, prefix: str = "") -> str:
    """The first problem of a pydantic error as one sentence, with the dotted name of the setting."""
    problem = error.errors(include_url=False)[0]
    path = [str(part) for part in problem["loc"]]
    name = prefix + ".".join(path) or section.__name__
    if problem["type"] == "extra_forbidden":
        known = _known_names(section, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(known)}."
        return f"unknown setting {name!r}: {hint}"
    if problem["type"] == "missing":
        return f"setting {name!r} is missing in {section.__name__}."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{name}: {message}" if path else message
    return f"{name}={problem['input']!r}: {message}."


def _known_names(section: type[Section], path: Sequence[str]) -> list[str]:
    """The setting names of the section found by following `path` from `section`."""
    for part in path:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        types = (annotation, *get_args(annotation))
        nested = [t for t in types if isinstance(t, type) and issubclass(t, Section)]
        if not nested:
            return []
        section = nested[0]
    return list(section.model_fields)


def load_config(section: type[S], path: Path, overrides: Sequence[str] = ()) -> S:
    """Read a YAML file into a section and apply `key.sub=value` overrides."""
    values = load_mapping(path)
    try:
        return section(**section.overridden(values, overrides))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load_mapping(path: Path) -> dict[str, object]:
    """The settings in a YAML file, unchecked."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"config {path} must be a mapping of settings, not {type(values).__name__}.")
    return dict(values)


def override(values: dict[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Apply `key.sub=value` strings to a nested mapping; values are YAML, such as `null`, `3` or `[1, 2]`."""
    import yaml

    for text in overrides:
        key, found, raw = text.partition("=")
        if not found or not key:
            raise ConfigError(f"override {text!r} is not of the form key.sub=value.")
        *parents, leaf = key.split(".")
        place = values
        for part in parents:
            inner = place.get(part)
            inner = dict(inner) if isinstance(inner, Mapping) else {}
            place[part] = inner
            place = inner
        place[leaf] = yaml.safe_load(raw)
    return values


def save_config(config: Section, path: Path) -> None:
    """Write every setting, defaults included, as YAML that `load_config` reads back."""
    import yaml

    write_atomic(Path(path), yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
