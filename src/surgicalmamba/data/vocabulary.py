"""Phase names of a dataset in id order, and the one place where a label text becomes an id.

The names are data: `splits/<dataset>.yaml` holds them with their source, and a user's own YAML file of the same form serves a user's own
procedure. Nothing here imports numpy or pydantic: reading the label files of a whole test set has to take less than a blink."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from surgicalmamba.errors import ConfigError, DataError

_SHIPPED = files("surgicalmamba.data").joinpath("splits")

UNLABELLED = -1
"""Id of a row that carries no label (a lead-in, a gap). It is a mask, never a class."""


def _fold(text: str) -> str:
    """Case, spaces and punctuation do not tell two phases apart: `Calot_triangle dissection` is CalotTriangleDissection."""
    return re.sub(r"[\W_]+", "", text).casefold()


@dataclass(frozen=True)
class PhaseVocabulary:
    """The phases of one dataset. `names[i]` is the phase with id i in this package, whatever number the dataset's own files use."""

    dataset: str
    names: tuple[str, ...]
    source: str = ""
    first_id: int = 0
    """The number of the first phase in the dataset's own label files: 1 for AutoLaparo and Cataract-101, 0 elsewhere."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings in circulation, each with the name it stands for."""
    _ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError(f"vocabulary {self.dataset!r} names no phases: list them in id order under `phases:`.")
        ids: dict[str, int] = {}
        for number, name in enumerate(self.names):
            folded = _fold(name)
            if not folded or _as_integer(name) is not None:
                raise ConfigError(f"vocabulary {self.dataset!r}: phase {number} is called {name!r}; a name needs a letter.")
            if folded in ids:
                raise ConfigError(f"vocabulary {self.dataset!r}: {name!r} and {self.names[ids[folded]]!r} differ only in case or spacing.")
            ids[folded] = number
        for alias, name in self.aliases.items():
            if _fold(name) not in ids:
                raise ConfigError(f"vocabulary {self.dataset!r}: alias {alias!r} stands for {name!r}, which is no phase of it.")
            if ids.setdefault(_fold(alias), ids[_fold(name)]) != ids[_fold(name)]:
                raise ConfigError(f"vocabulary {self.dataset!r}: alias {alias!r} is already another phase.")
        object.__setattr__(self, "aliases", MappingProxyType(dict(self.aliases)))
        object.__setattr__(self, "_ids", MappingProxyType(ids))

    def __len__(self) -> int:
        return len(self.names)

    def id_of_name(self, text: str) -> int:
        """Id of a phase given by name only; case, spacing and underscores are forgiven, anything else is an error with a suggestion."""
        found = self._ids.get(_fold(text))
        if found is None:
            raise DataError(f"unknown phase {text.strip()!r} for {self.dataset}{self._suggestion(text)}")
        return found

    def id_of(self, text: str, first_id: int | None = None) -> int:
        """Id of a phase given by name or by number. Numbers count from `first_id`, by default from the dataset's own first number."""
        number = _as_integer(text)
        if number is None:
            return self.id_of_name(text)
        base = self.first_id if first_id is None else first_id
        if not base <= number < base + len(self):
            other = 1 - base  # files count from 0 or from 1
            hint = f"; if the ids count from {other}, say so" if other <= number < other + len(self) else ""
            raise DataError(f"phase id {number} is outside {base} to {base + len(self) - 1} of {self.dataset}{hint}")
        return number - base

    def _suggestion(self, text: str) -> str:
        near = get_close_matches(_fold(text), self._ids, n=1, cutoff=0.6)
        return f"; did you mean {self.names[self._ids[near[0]]]!r}?" if near else f"; its phases are {', '.join(self.names)}"


def _as_integer(text: str) -> int | None:
    """The integer that a text spells in plain digits, or None."""
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"[+-]?[0-9]+", stripped) else None


def known_datasets() -> list[str]:
    """Names that `load_vocabulary` knows without a file."""
    names = (entry.name for entry in _SHIPPED.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_vocabulary(name_or_path: str | Path) -> PhaseVocabulary:
    """The vocabulary of a known dataset (`cholec80`), or of a YAML file with the key `phases:` (a list of names in id order) and, if
    wanted, `dataset:`, `source:`, `first_id:` and `aliases:`. Other keys, such as splits, are left to their own readers."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read the phase list {path}: {error}. Give a YAML file with a `phases:` list.") from error
        return _parse(content, path.stem, str(path))
    known = known_datasets()
    if text not in known:
        near = get_close_matches(text.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)};"
        raise ConfigError(f"unknown dataset {text!r}: {hint} For your own phases give a YAML file with a `phases:` list.")
    return _parse(_SHIPPED.joinpath(f"{text}.yaml").read_text(encoding="utf-8"), text, f"{text}.yaml")


def _parse(content: str, default_name: str, where: str) -> PhaseVocabulary:
    import yaml

    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise DataError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    phases = document.get("phases") if isinstance(document, dict) else None
    if not isinstance(phases, list) or not phases:
        raise DataError(f"{where} has no `phases:` list; write the phase names in id order, one `- name` per line.")
    for number, name in enumerate(phases):
        if not isinstance(name, str):
            raise DataError(f"{where}: phase {number} is {name!r}, not a text; put quotes around it.")
    aliases = document.get("aliases") or {}
    if not isinstance(aliases, dict) or not all(isinstance(part, str) for pair in aliases.items() for part in pair):
        raise DataError(f"{where}: `aliases:` must map another spelling to a phase name, both as text.")
    first_id = document.get("first_id", 0)
    if not isinstance(first_id, int) or isinstance(first_id, bool):
        raise DataError(f"{where}: `first_id:` is {first_id!r}; it must be the integer that numbers the first phase, such as 0 or 1.")
    return PhaseVocabulary(
        dataset=str(document.get("dataset", default_name)),
        names=tuple(phases),
        source=" ".join(str(document.get("source", "")).split()),
        first_id=first_id,
        aliases=aliases,
    )
