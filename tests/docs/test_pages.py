"""Files that the documents link to or name exist. (What the documents show is run by test_snippets.py.)"""

import re

import pytest

from docs.blocks import PAGES, ROOT


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_links_to_or_names_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:docs|src|tests)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"
