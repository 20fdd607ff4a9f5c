"""The files of examples/ work as they stand."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def check(*arguments, cwd=EXAMPLES):
    call = [sys.executable, "-m", "surgicalmamba", "check", *arguments]
    return subprocess.run(call, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_example_of_an_own_recognizer_keeps_the_contract_and_is_as_short_as_promised():
    said = check("--model", "own_recognizer:MovingAverage", "--settings", "seconds=[3, 30]")
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith("own_recognizer:MovingAverage: MovingAverage, 231 weights, memory O(1)")  # 2 x 16 x 7 + 7
    assert len(lines) == 10 and all(line.startswith("ok") for line in lines[1:])
    code = (EXAMPLES / "own_recognizer.py").read_text().partition('"""\n\n')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_a_recognizer_that_breaks_the_contract_is_told_in_one_line_and_exit_code_1(tmp_path):
    (tmp_path / "leaky.py").write_text(
        (EXAMPLES / "own_recognizer.py")
        .read_text()
        .replace("self.classifier(torch.stack(history, dim=1))", "LEAK")
        .replace("LEAK", "self.classifier(torch.stack(history, dim=1).mean(1, keepdim=True).expand(-1, len(history), -1))")
    )
    said = check("--model", "leaky:MovingAverage", cwd=tmp_path)
    assert said.returncode == 1
    assert any(line.startswith("FAILED  causal, look-ahead zero: frames after 0 change the logits") for line in said.stdout.splitlines())


def test_what_cannot_be_checked_is_one_line(tmp_path):
    said = check("--model", "no_such_module:Network", cwd=tmp_path)
    assert said.returncode == 1 and said.stderr.startswith("surgicalmamba: no_such_module:Network cannot be imported")
    assert check(cwd=tmp_path).returncode == 2
    assert check("--model", "teckno", cwd=tmp_path).stderr.startswith("surgicalmamba: unknown recognizer 'teckno': did you mean 'tecno'?")
