"""The documentation site: it builds without a warning, stands alone, and shows every public name."""

import re
import subprocess
import sys

import pytest

import surgicalmamba as sm
from docs.blocks import ROOT
from surgicalmamba import _HOME

pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'surgicalmamba[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install 'surgicalmamba[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def test_every_page_is_in_the_site_and_in_its_navigation(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / built).is_file()
        assert page.stem == "index" or f'href="{built}"' in home, (
            f"{page.name} is not in the nav of mkdocs.yml"
        )


def test_nothing_is_loaded_from_elsewhere(site):
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\ssrc="?(https?:)?//|<link(?![^>]*rel="?canonical)[^>]*\shref="?(https?:)?//'
    )
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text(encoding="utf-8")), page.name
    for style in site.rglob("*.css"):
        assert "@import" not in style.read_text(encoding="utf-8") and "url(http" not in style.read_text(
            encoding="utf-8"
        ), style.name


@pytest.mark.parametrize("name", sorted(_HOME))
def test_the_api_page_shows_the_public_name(site, name):
    page = (site / "api.html").read_text(encoding="utf-8")
    home = _HOME[name]
    if home.endswith(f".{name}"):  # a module: its contents stand on the page
        assert f"sm.{name}" in page or f'id="{home}' in page
    else:
        assert f'id="{home}.{name}"' in page, f"add ::: {home}.{name} to docs/api.md"


def test_no_public_name_lacks_a_docstring():
    missing = [
        name
        for name in sm.__all__
        if not name.startswith("__") and not (getattr(sm, name).__doc__ or "").strip()
    ]
    assert missing == []
