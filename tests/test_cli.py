"""The command line as a user meets it: real processes."""

import json
import subprocess
import sys


def run(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "surgicalmamba", *arguments], capture_output=True, text=True, check=False, **options)


def test_help_names_every_verb_and_imports_no_torch():
    probe = (
        "import sys; sys.argv = ['surgicalmamba', '--help']\n"
        "from surgicalmamba.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('HEAVY', sorted(m for m in ('torch', 'numpy', 'pydantic', 'matplotlib', 'cv2', 'av') if m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "doctor" in result.stdout
    assert "HEAVY []" in result.stdout


def test_an_unknown_verb_is_misuse_with_exit_code_2():
    result = run("docter")
    assert result.returncode == 2
    assert "doctor" in result.stderr


def test_doctor_reports_torch_and_says_how_to_get_what_is_missing():
    findings = {f["name"]: f for f in json.loads(run("doctor", "--json").stdout)}
    assert findings["torch"]["state"] == "present"
    for finding in findings.values():
        if finding["state"] == "missing":
            assert "install" in finding["text"] or "comes with" in finding["text"]
    lines = run("doctor").stdout.splitlines()
    assert len(lines) == len(findings)
