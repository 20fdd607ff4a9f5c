"""The wheel without the clone: built, installed into an empty environment, and used.

Nothing is downloaded. The dependencies are links to the distributions of the environment that runs the tests.
Only those are linked that the wheel requires without extras: an import that pyproject.toml does not declare
fails."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.blocks import ROOT, blocks

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
BUILD_TOOLS = (Requirement("pip>=22.3"), Requirement("setuptools>=77"))


def run(*command, cwd):
    """Run a command that must succeed, without this environment's Python path; returns what it printed."""
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    result = subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(map(str, command))}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def is_installed(wish):
    """Whether this environment meets a requirement."""
    try:
        return importlib.metadata.version(wish.name) in wish.specifier
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the sources, so that nothing is written into the clone."""
    for tool in BUILD_TOOLS:
        if not is_installed(tool):
            pytest.skip(f"{tool} is not installed, and an isolated build would download it")
    sources = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, sources / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, sources / name)
    folder = tmp_path_factory.mktemp("dist")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(sources), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def dependencies(wheel):
    """The distributions that the wheel needs without extras, and theirs: name -> distribution."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    missing = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    found = {}
    while missing:
        wish = Requirement(missing.pop())
        name = canonicalize_name(wish.name)
        if name in found or (wish.marker is not None and not wish.marker.evaluate({"extra": ""})):
            continue
        found[name] = importlib.metadata.distribution(name)
        missing += found[name].requires or []
        assert found[name].version in wish.specifier, (
            f"{wish} is declared; this environment has {found[name].version}"
        )
    return found


def link_into(site_packages, distribution):
    """Link the top-level files and folders of an installed distribution, but not its scripts."""
    for top in {
        file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
    }:
        link = site_packages / top
        if not link.exists():  # folders such as `nvidia` belong to several distributions
            link.symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment of its own with the wheel installed: the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    place = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", place))
    for distribution in dependencies(wheel).values():
        link_into(site_packages, distribution)
    programs = Path(sysconfig.get_path("scripts", "venv", place))
    options = ["--quiet", "--no-deps", "--no-index", "--no-warn-script-location"]
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(programs / "python"),
        "install",
        *options,
        str(wheel),
        cwd=folder,
    )
    return programs


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    package = ROOT / "src/surgicalmamba"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {path.relative_to(package.parent).as_posix() for path in files}


def test_the_installed_package_is_the_one_of_the_wheel(environment, tmp_path):
    where = run(
        environment / "python", "-c", "import surgicalmamba; print(surgicalmamba.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(environment.parent)


def test_the_demo_recognizes_an_operation_and_leaves_a_report(environment, tmp_path):
    run(environment / "surgicalmamba", "demo", cwd=tmp_path)
    assert list(tmp_path.glob("surgicalmamba-demo/**/index.html"))


def test_doctor_finds_the_installation_complete(environment, tmp_path):
    verdicts = [
        line.split()[:2] for line in run(environment / "surgicalmamba", "doctor", cwd=tmp_path).splitlines()
    ]
    assert ["ok", "surgicalmamba"] in verdicts and ["ok", "torch"] in verdicts
    assert ["-", "onnxruntime"] in verdicts, "an extra that nobody asked for is installed"


def test_the_first_python_of_the_readme_runs(environment, tmp_path):
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    run(environment / "python", "-c", first.text, cwd=tmp_path)
