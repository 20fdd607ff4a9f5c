"""Fenced blocks of a page and the marks above them.

A mark is an HTML comment on the line above the fence, so readers do not see it:

<!-- not run: KIND, why -->   the block cannot run in a test; its commands are still parsed (see KINDS).
<!-- file: NAME -->           the block is saved under this name in the folder in which the page runs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

KINDS = {
    "download": "needs a dataset or a checkpoint that has to be asked for or downloaded",
    "camera": "needs a capture device or a camera on the network",
    "network": "installs packages, or reaches other machines",
    "hardware": "needs a GPU or several machines",
    "long": "takes minutes",
    "elsewhere": "is run by the test that the reason names",
}
LANGUAGES = ("sh", "python", "yaml", "json", "csv", "text")
_COMMANDS = ("surgicalmamba", "make", "pip", "python", "torchrun", "ffmpeg", "curl")
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (not run|file): (.*?) -->\n$")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of text; `kind` and `reason` are set for a block
    that is not run."""

    page: Path
    line: int
    language: str
    text: str
    kind: str | None = None
    reason: str | None = None
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block: continued lines joined, comments and empty lines left out."""
        if self.language != "sh":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order. A block without a language is a shell block if it begins with a command,
    else text."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        mark = _MARK.search(before[before.rfind("\n", 0, -1) + 1 :])
        kind = reason = file = None
        if mark is not None and mark[1] == "file":
            file = mark[2]
        elif mark is not None:
            kind, _, reason = (part.strip() for part in mark[2].partition(","))
        first = (match[2].split() or [""])[0]
        language = match[1] or ("sh" if first in _COMMANDS else "text")
        yield Block(page, before.count("\n") + 2, language, match[2], kind, reason, file)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def inline_commands(page: Path) -> list[str]:
    """Commands of this package that a page names in running text, such as `surgicalmamba check PREPARED`."""
    return [" ".join(found.split()) for found in re.findall(r"`(surgicalmamba [a-z-][^`]*)`", prose(page))]
