"""The command line as a user meets it: real processes."""

import json
import os
import subprocess
import sys
from collections import Counter

from surgicalmamba.model.surgical_mamba import VARIANTS


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "surgicalmamba", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_names_every_verb_and_imports_no_torch():
    probe = (
        "import sys; sys.argv = ['surgicalmamba', '--help']\n"
        "from surgicalmamba.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'matplotlib', 'cv2', 'av')\n"
        "print('HEAVY', [name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "doctor" in result.stdout
    assert "HEAVY []" in result.stdout


def test_an_unknown_verb_is_misuse_with_exit_code_2():
    result = run("docter")
    assert result.returncode == 2
    assert "doctor" in result.stderr


def test_doctor_reports_torch_and_says_how_to_get_what_is_missing():
    findings = {f["name"]: f for f in json.loads(run("doctor", "--json").stdout)["findings"]}
    assert findings["torch"]["state"] == "present"
    for finding in findings.values():
        if finding["state"] == "missing":
            assert "install" in finding["text"] or "comes with" in finding["text"]
    lines = run("doctor").stdout.splitlines()
    assert len(lines) == len(findings)


def test_doctor_checks_that_every_form_of_the_model_agrees_and_that_it_learns():
    result = run("doctor", "--self-check", "--json")
    assert result.returncode == 0, result.stderr
    checks = json.loads(result.stdout)["self_check"]
    assert len(checks) == len(VARIANTS) + 4 and all(
        check["passed"] and check["measured"] <= check["limit"] for check in checks
    )


def test_the_demo_recognizes_an_operation_it_has_not_seen_and_leaves_video_estimates_and_report(tmp_path):
    result = run("demo", "--seed", "3", "--out", str(tmp_path), "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    place = tmp_path / "seed3"
    labels = (place / "operation" / "video01.txt").read_text().splitlines()[1:]
    assert said["summary"]["estimates"] == -(-len(labels) // 5)  # labels at 5 per second, estimates at 1
    always_the_longest = max(Counter(line.split("\t")[1] for line in labels).values()) / len(labels)
    assert said["evaluation"]["protocols"]["strict"]["accuracy"]["mean"] > 100 * always_the_longest
    assert "<svg" in (place / "report" / "index.html").read_text()
    assert (place / "overlay.mp4").stat().st_size > 10_000
    lines = [json.loads(line) for line in (place / "estimates.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines] == [
        "session",
        *["estimate"] * said["summary"]["estimates"],
        "end",
    ]


def test_bench_model_reports_every_figure_as_json():
    report = json.loads(
        run("bench", "model", "--preset", "tiny", "--quick", "--runs", "1", "--threads", "1", "--json").stdout
    )
    assert report["parameters"]["total"] > report["parameters"]["rotation_networks"] > 0
    assert (
        report["macs_per_frame"]["total"]
        == report["macs_per_frame"]["backbone"] + report["macs_per_frame"]["temporal"]
    )
    assert set(report["rotation"]) == {"low-rank", "dense"} and set(report["frame"]) == {
        "ordinary",
        "boundary",
    }
    assert report["forward_speedup_limit"] > 0 and report["matrix_gflops"] > 0
    for group in ("forward", "forward_backward"):
        assert set(report[group]) == {"clip", "steps"}
        assert report[group]["clip"]["median_ms"] > 0 and report[f"{group}_speedup"] > 0


def test_an_expected_error_is_one_line_and_exit_code_1():
    result = run("bench", "model", "--preset", "huge")
    assert result.returncode == 1
    assert result.stderr.strip() == "surgicalmamba: unknown preset 'huge'; presets: paper, release, tiny."


def test_debug_shows_the_traceback():
    assert "Traceback" in run("--debug", "bench", "model", "--preset", "huge").stderr


def test_bench_rotation_times_both_forms_at_every_size():
    rows = json.loads(run("bench", "rotation", "--runs", "1", "--threads", "1", "--json").stdout)
    assert {(row["d_state"], row["rank"]) for row in rows} >= {(64, 16), (16, 8)}
    for row in rows:
        assert row["chosen"] == ("low-rank" if 2 * row["rank"] < row["d_state"] else "dense")
        assert row["low_rank"]["median_ms"] > 0 and row["dense"]["median_ms"] > 0


def test_doctor_reports_a_torch_that_does_not_import():
    probe = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['surgicalmamba', 'doctor']\n"
        "from surgicalmamba.cli.main import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert "torch does not import" in result.stdout and "pip install --force-reinstall torch" in result.stdout


def test_a_plugin_adds_its_function_as_a_verb_and_a_broken_one_is_named_in_one_line(tmp_path):
    (tmp_path / "greeting.py").write_text("def greet(name: str) -> None:\n    print(f'hello {name}')\n")
    info = tmp_path / "greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    points = "[surgicalmamba.commands]\ngreet = greeting:greet\nlost = absent_module:lost\n"
    (info / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    greeted = run("greet", "theatre", env={**os.environ, "PYTHONPATH": path})
    assert (greeted.returncode, greeted.stdout) == (0, "hello theatre\n")
    named = "surgicalmamba: the command 'lost' of absent_module:lost cannot be loaded"
    assert greeted.stderr == f"{named}: No module named 'absent_module'\n"
    version = run("--version", env={**os.environ, "PYTHONPATH": path})
    assert version.returncode == 0 and version.stdout.startswith("surgicalmamba ")
