"""The page in a real browser: Chromium of the system, through Playwright."""

import shutil
import time

import pytest

import surgicalmamba as sm
from server.seed import made_up_rows, seed_session
from surgicalmamba.data.synthetic import PHASE_NAMES
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba_lab.bench.serve import ServerProcess

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
WAIT_MS = 60_000


def see(page, selector, text):
    """Wait until an element has this text. (Functions evaluated in the page would be refused by its content
    security policy.)"""
    playwright.expect(page.locator(selector)).to_have_text(text, timeout=WAIT_MS)


def link_is(page, state):
    playwright.expect(page.locator("#link")).to_have_attribute("data-state", state, timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser):
    """A page that fails its test on any console error or uncaught exception."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(WAIT_MS)
    problems = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.problems = problems
    yield opened
    opened.close()
    assert [p for p in problems if "ERR_CONNECTION" not in p and "Failed to load resource" not in p] == []


@pytest.fixture(scope="module")
def live(checkpoint, model, tmp_path_factory):
    """A server with the demo, and a six-hour operation at ten estimates per second on record."""
    folder = tmp_path_factory.mktemp("page")
    key = seed_session(folder, EagerEngine(model).fingerprint, "Six hours", 216_000, fps=10, is_finished=True)
    with ServerProcess(
        checkpoint, folder, ("demo=true", "commit_ms=20", "limits.requests_per_s=1000")
    ) as server:
        server.long_session = key
        yield server


def test_a_newcomer_presses_demo_and_sees_it_move(live, page):
    page.goto(live.url)
    page.get_by_role("button", name="Start the demo").click()
    page.wait_for_selector(".ribbon")
    playwright.expect(page.locator(".now .clock")).not_to_have_text("0:00", timeout=WAIT_MS)
    assert page.locator(".now .percent").inner_text().endswith("%")
    assert page.locator("table.phases tbody tr").count() == 7
    assert "not a medical device" in page.locator("footer").inner_text()
    page.get_by_role("button", name="Finish").click()
    see(page, ".bar .life", "finished")
    assert page.problems == []


def test_two_rooms_show_their_own_estimates_as_they_come(live, page, pictures):
    client = sm.Client(live.url)
    first, second = client.create("Theatre A"), client.create("Theatre B")
    page.goto(f"{live.url}/#rooms")
    page.wait_for_selector(f'.card[data-session="{second.id}"]')
    for i in range(3):
        first.push(pictures[i], 60.0 * i)
    for i in range(2):
        second.push(pictures[i], 1.0 * i)
    see(page, f'.card[data-session="{first.id}"] .time', "2:00")
    see(page, f'.card[data-session="{second.id}"] .time', "0:01")
    estimate = second.wait()[-1]
    shown = page.locator(f'.card[data-session="{second.id}"] .confidence').inner_text()
    assert shown == f"{round(100 * estimate.probabilities[estimate.phase])} %"
    page.keyboard.press("1")
    page.wait_for_selector(".now")
    page.keyboard.press("ArrowRight")
    see(page, "h1.name", "Theatre B")
    page.keyboard.press("Escape")
    page.wait_for_selector(".cards")
    first.finish()
    second.finish()
    page.wait_for_selector(".card", state="detached")
    assert page.problems == []


def test_a_six_hour_ribbon_is_painted_whole_and_a_new_estimate_paints_a_few_pixels(live, page):
    page.goto(f"{live.url}/#room/{live.long_session}")
    see(page, ".now .clock", "5:59:59")
    figures = page.evaluate("""async () => {
        const { Ribbon } = await import('/ribbon.js');
        const canvas = document.querySelector('.ribbon');
        const ribbon = new Ribbon(canvas);
        for (let i = 0; i < 216000; i += 1) ribbon.add(i / 10, (i / 30000) | 0, 0.1);
        ribbon.paint();
        const repaints = ribbon.repaints;
        for (let i = 0; i < 300; i += 1) {
            ribbon.add(21600 + i / 10, 6, 0.2);
            ribbon.paint();
        }
        return { repaints: ribbon.repaints - repaints, n: ribbon.n };
    }""")
    assert figures["n"] == 216_300
    assert figures["repaints"] <= 1  # at most one change of scale; every other estimate paints its own pixels


def test_a_curve_painted_estimate_by_estimate_is_the_one_painted_at_once(live, page):
    page.goto(f"{live.url}/#replay")
    page.wait_for_selector("main h1")
    counts = page.evaluate("""async () => {
        const { Ribbon } = await import('/ribbon.js');
        const painted = (isStepwise) => {
            const canvas = document.createElement('canvas');
            canvas.className = 'ribbon';
            document.querySelector('main').append(canvas);
            const ribbon = new Ribbon(canvas);
            for (let i = 0; i < 60; i += 1) {
                ribbon.add(i, 0, 0.2 + 0.01 * i);
                if (isStepwise) ribbon.paint();
            }
            ribbon.paint();
            const { curveTop, curveBottom } = ribbon.band;
            const height = curveBottom - curveTop;
            const image = canvas.getContext('2d').getImageData(0, curveTop, canvas.width, height);
            return image.data.reduce((sum, value) => sum + (value > 0), 0);
        };
        return [painted(true), painted(false)];
    }""")
    assert counts[0] == counts[1] > 10_000


def test_the_page_finds_back_after_the_server_was_killed(live, page, pictures):
    remote = sm.Client(live.url).create("Theatre C")
    remote.push(pictures[0], 0.0)
    remote.wait()
    page.goto(f"{live.url}/#room/{remote.id}")
    link_is(page, "live")
    live.kill()
    link_is(page, "lost")
    live.start()
    link_is(page, "live")
    for i in range(1, 4):
        remote.push(pictures[i], 30.0 * i)
    see(page, ".now .clock", "1:30")
    remote.finish()


def test_a_prediction_file_is_replayed_in_the_browser(live, page, tmp_path):
    import numpy as np

    from surgicalmamba.data.labels import PhaseVocabulary
    from surgicalmamba.eval.files import VideoPrediction, write_predictions

    rows = made_up_rows(600)
    table = np.array([row.probabilities for row in rows])
    index = np.arange(600)
    prediction = VideoPrediction(
        index, index.astype(float), table.argmax(1), table, np.array([row.intensity for row in rows])
    )
    file = write_predictions(tmp_path, "video01", prediction, PhaseVocabulary("synthetic", PHASE_NAMES))
    page.goto(f"{live.url}/#replay")
    page.locator("input.file").set_input_files(file)
    see(page, ".now .clock", "9:59")
    page.locator(".position").fill("61")
    see(page, ".now .clock", "1:00")
    page.get_by_role("button", name="Play").click()
    playwright.expect(page.locator(".now .clock")).not_to_have_text("1:00", timeout=WAIT_MS)
    bare = tmp_path / "bare.csv"
    bare.write_text("time_s,phase\n0,0\n1,4\n2,2\n")
    page.locator("input.file").set_input_files(bare)
    playwright.expect(page.locator("table.phases tbody tr")).to_have_count(
        5, timeout=WAIT_MS
    )  # phases 0 to 4, without names
    bad = tmp_path / "bad.csv"
    bad.write_text("hello\n1\n")
    page.locator("input.file").set_input_files(bad)
    playwright.expect(page.locator(".error")).to_contain_text("not a prediction file", timeout=WAIT_MS)
    assert page.problems == []


def test_finished_sessions_show_their_ribbon_and_export(live, page):
    page.goto(f"{live.url}/#finished")
    row = page.locator(f'.session[data-session="{live.long_session}"]')
    row.wait_for()
    assert "5:59:59" in row.inner_text()
    with page.expect_download() as download:
        row.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 216_001 and lines[0].startswith("frame,time_s,phase,name,p_0")


def test_a_token_is_asked_for_and_lets_in(checkpoint, browser, tmp_path):
    token = "a-long-secret-token-of-a-viewer"
    environment = {"SURGICALMAMBA_TOKENS": f"viewer:{token}"}
    with ServerProcess(checkpoint, tmp_path, ("demo=true",), environment) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.locator("#token").fill("wrong")
        page.get_by_role("button", name="Connect").click()
        see(page, "#token-error", "a bearer token is needed")
        page.locator("#token").fill(token)
        page.get_by_role("button", name="Connect").click()
        page.wait_for_selector(".cards", state="attached")
        assert page.get_by_role("button", name="Start the demo").count() == 0  # a viewer may not
        page.close()


def test_every_view_fits_a_phone_a_tablet_and_a_screen_in_both_themes(live, browser):
    for width in (360, 820, 1920):
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            for view in ("rooms", "finished", "replay", f"room/{live.long_session}"):
                page.goto(f"{live.url}/#{view}")
                page.wait_for_selector("main h1")
                time.sleep(0.05)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    f"{view} is wider than {width} pixels"
                )
            page.close()
