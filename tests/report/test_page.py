"""The report: one page that stands alone, figures beside it, worst videos first."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread

from surgicalmamba.data.labels import PhaseVocabulary
from surgicalmamba.errors import DataError
from surgicalmamba.eval.evaluate import Evaluation
from surgicalmamba.eval.pairs import make_pair
from surgicalmamba.eval.protocols import score_runs
from surgicalmamba.eval.score import Settings
from surgicalmamba.report.page import write_report

NAMES = tuple(
    f"Phase <{letter}>" for letter in "abcdefghi"
)  # more phases than colours, and characters that HTML must not see


def evaluation(probabilities):
    generator = np.random.default_rng(1)
    videos = []
    for index, wrong in enumerate((5, 60, 20)):
        truth = np.repeat(np.arange(9), 20)
        predicted = np.roll(truth, 2)
        predicted[:wrong] = 8
        table = (
            (0.9 * np.eye(9)[predicted] + 0.1 * generator.dirichlet(np.ones(9), size=180))
            if probabilities
            else None
        )
        videos.append(make_pair(f"video {index}", truth, predicted, 9, table))
    settings = Settings(NAMES)
    report = score_runs([videos], settings, ["all"])
    return Evaluation(PhaseVocabulary("mine", NAMES), settings, [videos], report, ("a note & more",))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    page = write_report(evaluation(probabilities=True), folder / "new" / "place")
    return page, page.read_text(encoding="utf-8")


def test_the_page_asks_for_nothing_from_outside(report):
    _, html = report
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*', html) == []
    assert "<script" not in html
    assert not re.search(r"url\((?!#)", html)


def test_every_tag_is_closed_and_every_id_is_unique(report):
    _, html = report
    void = {"meta", "br", "img"}
    stack, ids = [], []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attrs):
            ids.extend(value for key, value in attrs if key == "id")
            if tag not in void:
                stack.append(tag)

        def handle_startendtag(self, tag, attrs):
            ids.extend(value for key, value in attrs if key == "id")

        def handle_endtag(self, tag):
            assert stack.pop() == tag

    Checker().feed(html)
    assert stack == []
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', html))
    assert used <= set(ids)


def test_worst_videos_come_first(report):
    _, html = report
    titles = re.findall(r"<figcaption>(video \d): strict accuracy", html)
    assert titles == ["video 1", "video 2", "video 0"]


def test_names_are_escaped_and_notes_shown(report):
    _, html = report
    assert "Phase &lt;a&gt;" in html and "Phase <a>" not in html
    assert "a note &amp; more" in html


def test_every_protocol_stands_with_its_settings(report):
    _, html = report
    for name in (
        "strict",
        "strict-b",
        "paper",
        "framewise",
        "relaxed-symmetric",
        "segmental",
        "map",
        "calibration",
    ):
        assert f"<h2>{name}</h2>" in html
    assert html.count("1 row/s") >= 8
    assert "relaxed-published: not computed" in html


def test_figures_are_written_as_png_and_svg_and_are_not_blank(report):
    page, _ = report
    figures = page.parent / "figures"
    stems = {
        "confusion",
        "latency",
        "reliability",
        "timeline-video-0",
        "timeline-video-1",
        "timeline-video-2",
    }
    assert (
        {path.stem for path in figures.glob("*.png")}
        == {path.stem for path in figures.glob("*.svg")}
        == stems
    )
    for path in figures.glob("*.png"):
        pixels = imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 200
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5


def test_without_probabilities_there_is_no_reliability_diagram(tmp_path):
    page = write_report(evaluation(probabilities=False), tmp_path)
    assert not (tmp_path / "figures" / "reliability.png").exists()
    assert "<h2>Reliability</h2>" not in page.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot make the folder"):
        write_report(evaluation(probabilities=False), tmp_path / "file")
