"""docs/paper-map.md names a function and a test for every equation of the paper, and both exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(
    r"^\| (?P<equation>[^|]+) \| [^|]+ \| `(?P<code>[^`]+)` \| `(?P<test>[^`]+)` \|$", re.MULTILINE
)
TEXT = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
ROWS = [(m["equation"].strip(), m["code"], m["test"]) for m in ROW.finditer(TEXT)]


def names_in(file):
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_every_table_row_was_understood():
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith(("| Equation", "|---"))
    ]
    assert len(ROWS) == len(rows) > 40


@pytest.mark.parametrize(
    ("equation", "code", "test"), ROWS, ids=[f"{e}-{i}" for i, (e, _, _) in enumerate(ROWS)]
)
def test_function_and_test_exist(equation, code, test):
    for base, reference in ((ROOT / "src" / "surgicalmamba", code), (ROOT, test)):
        file, _, name = reference.partition("::")
        assert (base / file).is_file(), f"{equation}: no file {file}"
        assert name in names_in(base / file), f"{equation}: no {name} in {file}"


def test_no_labelled_equation_of_the_paper_is_missing(paper_source):
    labels = set(re.findall(r"\\label\{eq:([^}]+)\}", paper_source))
    mapped = {equation.strip("`") for equation, _, _ in ROWS}
    assert len(labels) > 30
    assert labels - mapped == set()
