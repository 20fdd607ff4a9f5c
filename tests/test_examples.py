"""The files of examples/ work as they stand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN = (EXAMPLES / "own_recognizer.py").read_text()


def check(*arguments, cwd=EXAMPLES):
    call = [sys.executable, "-m", "surgicalmamba", "check", *arguments]
    return subprocess.run(call, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_example_of_an_own_recognizer_keeps_the_contract_and_is_as_short_as_promised():
    said = check("--model", "own_recognizer:MovingAverage", "--settings", "seconds=[3, 30]")
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith(
        "own_recognizer:MovingAverage: MovingAverage, 231 weights, memory O(1)"
    )  # 2 x 16 x 7 + 7
    assert len(lines) == 11 and all(line.startswith("ok") for line in lines[1:])
    code = OWN.partition('"""\n\n')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_a_recognizer_that_breaks_the_contract_is_told_in_one_line_and_exit_code_1(tmp_path):
    (tmp_path / "leaky.py").write_text(
        OWN.replace("self.classifier(torch.stack(history, dim=1))", "LEAK").replace(
            "LEAK",
            "self.classifier(torch.stack(history, dim=1).mean(1, keepdim=True).expand(-1, len(history), -1))",
        )
    )
    said = check("--model", "leaky:MovingAverage", cwd=tmp_path)
    assert said.returncode == 1
    assert any(
        line.startswith("FAILED  causal, look-ahead zero: frames after 0 change the logits")
        for line in said.stdout.splitlines()
    )


def test_what_cannot_be_checked_is_one_line(tmp_path):
    said = check("--model", "no_such_module:Network", cwd=tmp_path)
    assert said.returncode == 1 and said.stderr.startswith(
        "surgicalmamba: no_such_module:Network cannot be imported"
    )
    assert check(cwd=tmp_path).returncode == 2
    assert check("--model", "teckno", cwd=tmp_path).stderr.startswith(
        "surgicalmamba: unknown recognizer 'teckno': did you mean 'tecno'?"
    )


FOREIGN = {
    "a syntax error": (
        "broken:Net",
        "def (",
        "surgicalmamba: broken:Net cannot be imported (SyntaxError: invalid syntax",
    ),
    "an end at import": (
        "broken:Net",
        "raise SystemExit(0)",
        "surgicalmamba: broken:Net cannot be imported (SystemExit: 0); fix broken.",
    ),
    "a file instead of a module": (
        "./broken.py:Net",
        "",
        "surgicalmamba: ./broken.py:Net names a file; write broken:Net in the folder",
    ),
    "a module without its class": (
        "broken",
        "",
        "surgicalmamba: broken is a Python file; also name the class, as broken:Class.",
    ),
    "a folder that is not there": (
        "runs/nothere",
        "",
        "surgicalmamba: runs/nothere is not a folder; give a checkpoint",
    ),
    "no memory class": (
        "broken:Net",
        OWN.replace(', "O(1)"', "").replace("config_class, memory =", "config_class ="),
        "surgicalmamba: broken:Net has no 'memory'",
    ),
    "an error when it is built": (
        "broken:Net",
        OWN.replace("super().__init__(config)", "raise OSError('no licence')"),
        "surgicalmamba: moving-average cannot be built with its default settings (OSError: no licence).",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_code_that_cannot_be_checked_is_refused_in_one_line(tmp_path, what):
    model, source, complaint = FOREIGN[what]
    (tmp_path / "broken.py").write_text(source.replace("class MovingAverage(", "class Net("))
    said = check("--model", model, cwd=tmp_path)
    assert said.returncode == 1 and said.stdout == ""
    assert said.stderr.startswith(complaint) and said.stderr.count("\n") == 1, said.stderr


def test_what_a_network_prints_does_not_get_into_the_answer(tmp_path):
    loud = OWN.replace(
        "        means, history = state.means, []",
        "        print('hello')\n        means, history = state.means, []",
    )
    (tmp_path / "loud.py").write_text(loud)
    said = check("--model", "loud:MovingAverage", "--frames", "20", "--json", cwd=tmp_path)
    assert said.returncode == 0 and json.loads(said.stdout)["ok"] and "hello" in said.stderr
