"""Several processes that survive each other."""

import importlib

import pytest

from surgicalmamba.data.workers import run_tasks

TASKS = """
import os, signal, time
from surgicalmamba.errors import DataError

def square(number, tell):
    tell(0.5)
    if number == 3:
        raise DataError("three is broken; mend it.")
    if number == 5:
        raise KeyError("five")
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number * number
"""


@pytest.fixture
def square(tmp_path, monkeypatch):
    """A function in a module that other processes can import."""
    (tmp_path / "tasks_for_workers.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("tasks_for_workers").square


@pytest.mark.parametrize("n_workers", [1, 2])
def test_one_failing_task_leaves_the_others_alone(square, n_workers):
    heard = []
    ends = {
        end.task: end
        for end in run_tasks(
            square, [1, 2, 3, 4, 5, 6], n_workers, lambda task, share: heard.append((task, share))
        )
    }
    assert {task: end.result for task, end in ends.items() if end.error is None} == {0: 1, 1: 4, 3: 16, 5: 36}
    assert ends[2].error == "three is broken; mend it."
    assert ends[4].error == "unexpected KeyError: 'five'; this is a defect, please report it."
    assert sorted(heard) == [(task, 0.5) for task in range(6)]


def test_a_killed_process_fails_its_task_only(square):
    ends = {end.task: end for end in run_tasks(square, [1, 7, 2, 4], 2)}
    assert {task: end.result for task, end in ends.items() if end.error is None} == {0: 1, 2: 4, 3: 16}
    assert "its process ended with code -9" in ends[1].error
