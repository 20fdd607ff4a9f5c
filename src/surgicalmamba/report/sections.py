"""A generated section of a Markdown page, and what must stand beside its numbers: date, code, machine and
command."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from surgicalmamba.eval.score import Json
from surgicalmamba.files import write_atomic
from surgicalmamba.version import __version__


def circumstances(command: str | None = None) -> dict[str, Json]:
    """What a number needs beside it: date, machine, version of the code, and the command (the one that
    runs by default)."""
    command = command or "surgicalmamba " + shlex.join(sys.argv[1:])
    return {
        "date": date.today().isoformat(),
        "version": __version__,
        "commit": _commit(),
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "command": command,
    }


def provenance_line(about: Mapping[str, Json]) -> str:
    """The circumstances as the sentence that stands above a table."""
    machine = about["machine"]
    assert isinstance(machine, dict)
    code = f"version {about['version']}, commit {about['commit'] or 'unknown'}"
    return f"{about['date']}, {code}, {machine['system']} {machine['machine']}, {machine['cores']} cores."


def _commit() -> str | None:
    """The commit of the code that runs, when it runs from a clone; marked when the package was changed
    since."""
    try:
        commit, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    """The output of git in the folder of the package."""
    command, package = ["git", *arguments], Path(__file__).parents[1]
    return subprocess.run(command, cwd=package, capture_output=True, text=True, check=True).stdout.strip()


def slug(title: str) -> str:
    """A title as the name of a file or mark: letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def refresh_page(page: Path, key: str, section: str) -> None:
    """Put a section in its place on the results page, between its two marks; a page or section that is not
    there is begun."""
    begin, end = f"<!-- study {key} -->", f"<!-- end {key} -->"
    text = page.read_text(encoding="utf-8") if page.is_file() else "# Results\n"
    block = f"{begin}\n{section}{end}\n"
    if begin in text and end in text:
        before, _, rest = text.partition(begin)
        text = before + block + rest.partition(end)[2].removeprefix("\n")
    else:
        text = text.rstrip("\n") + "\n\n" + block
    write_atomic(page, text.encode())
