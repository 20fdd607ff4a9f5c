"""Shared fixtures. Tests run on the CPU with synthetic data; one thread per worker, since two workers share
the cores."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARED = Path(__file__).parents[2] / "shared"


def shared_path(relative: str) -> Path:
    """A file of real data kept beside the repository; the test skips, with the reason, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(
            f"shared/{relative} is missing: real reference data is beside the repository, not committed"
        )
    return path


@pytest.fixture(scope="session")
def real_data():
    """`real_data("cholec80/labels")` is a path below shared/real, or a skip."""
    return lambda relative: shared_path(f"real/{relative}")


@pytest.fixture(scope="session")
def release_data():
    """`release_data("fill.py")` is a path below shared/release, or a skip."""
    return lambda relative: shared_path(f"release/{relative}")


@pytest.fixture(scope="session")
def paper_source():
    """The paper's LaTeX source as text, or a skip."""
    return shared_path("paper.tex").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def release_facts():
    """What is known of the authors' release, as text, or a skip."""
    return shared_path("release.md").read_text(encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory):
    """Engine choices and exports of tests go to a folder of their own; what a user has measured decides
    nothing here."""
    before = os.environ.get("SURGICALMAMBA_CACHE")
    os.environ["SURGICALMAMBA_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["SURGICALMAMBA_CACHE"]
    else:
        os.environ["SURGICALMAMBA_CACHE"] = before
