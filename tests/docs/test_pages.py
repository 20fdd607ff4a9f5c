"""What the documents show is run: python blocks are executed, `sh` blocks too. Blocks of other kinds are only read.

Pages whose commands need data have tests of their own beside this file."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
HERE = "".join(test.read_text(encoding="utf-8") for test in Path(__file__).parent.glob("test_*.py") if test != Path(__file__))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    for page in PAGES:
        if f'"{page.name}"' in HERE:
            continue
        for number, match in enumerate(m for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == language):
            yield pytest.param(match[2], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_in_the_documents_runs(code, tmp_path):
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("script", list(blocks("sh")))
def test_commands_in_the_documents_run(script, tmp_path):
    command = shutil.which("surgicalmamba", path=str(Path(sys.executable).parent))
    assert command, "the surgicalmamba command is not installed beside this python"
    environment = {**os.environ, "PATH": f"{Path(command).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = ["bash", "-euo", "pipefail", "-c", script]
    result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_links_to_or_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:docs|src|tests)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"
