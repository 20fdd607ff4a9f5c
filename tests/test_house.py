"""tools/house.py and tools/touched.py, on trees and runs that are small enough to count by hand."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools/house.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write(root, **lines):
    for name, count in lines.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * count, encoding="utf-8")


def test_modules_and_lines_are_counted_by_folder(house, tmp_path):
    write(tmp_path / house.PRODUCT, config=3, core__ssd=10, core__deep__chunks=5)
    write(tmp_path / house.LAB, study=2)
    sizes = house.measure_sizes(tmp_path)
    assert sizes == {
        f"{house.PRODUCT}/": house.Size(1, 3),
        f"{house.PRODUCT}/core/": house.Size(2, 15),
        f"{house.LAB}/": house.Size(1, 2),
    }
    assert house.total(sizes, house.PRODUCT) == house.Size(3, 18)


def test_the_table_puts_two_trees_side_by_side(house):
    before = house.House({f"{house.PRODUCT}/stream/": house.Size(32, 3373)}, {}, None)
    now = house.House({f"{house.PRODUCT}/live/": house.Size(9, 1200)}, {}, None)
    rows = house.sizes_table({"before": before, "now": now}).splitlines()
    assert rows[0] == "| Folder | modules before | modules now | lines before | lines now |"
    assert "| live/ | 0 | 9 | 0 | 1,200 |" in rows
    assert "| stream/ | 32 | 0 | 3,373 | 0 |" in rows
    assert f"| **{house.PRODUCT}** | **32** | **9** | **3,373** | **1,200** |" in rows


def test_files_of_each_frame_are_those_called_more_often_for_a_longer_recording(house):
    short = ({"surgicalmamba/cli/stream.py": 1, "surgicalmamba/core/ssd.py": 70}, frozenset({"a"}))
    long = ({"surgicalmamba/cli/stream.py": 1, "surgicalmamba/core/ssd.py": 140}, frozenset({"a"}))
    run = house._compare([short, long])
    assert run.files == {"surgicalmamba/cli/stream.py", "surgicalmamba/core/ssd.py"}
    assert run.of_each_frame == house.network_of(run) == {"surgicalmamba/core/ssd.py"}


def test_only_files_of_which_a_function_runs_are_recorded(tmp_path):
    code = "from surgicalmamba.core.chunks import chunk_segments; chunk_segments(3, (0,), 2)"
    command = [sys.executable, str(ROOT / "tools/touched.py"), "touched.json", "-c", code]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)
    found = json.loads((tmp_path / "touched.json").read_text(encoding="utf-8"))
    assert list(found["calls"]) == ["surgicalmamba/core/chunks.py"]  # not __init__.py, which is only imported
    assert {"surgicalmamba", "surgicalmamba.core.chunks"} <= set(found["imported"])


def test_the_files_of_the_typical_changes_exist(house):
    assert house.missing_files(ROOT) == []


def test_typical_changes_touch_no_more_files_than_their_goal(house):
    assert [change.name for change in house.CHANGES if len(set(change.files)) > change.goal] == []
