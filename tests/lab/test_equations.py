"""`study equations`: the identities hold, and docs/equations.md is what the command builds."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from command import call
from surgicalmamba.insight.regime import widest_cheap_fall, widest_fall
from surgicalmamba_lab.studies.equations import (
    CHUNK_LEN,
    PLATEAU_RATE,
    Check,
    collide,
    cost_after,
    cost_before,
    energy_destroyed,
    make_head,
    measured_kernel,
    net_gain,
    sections,
)

PAGE = Path(__file__).parents[2] / "docs" / "equations.md"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def parts():
    return sections()


def test_every_identity_holds_to_rounding(parts):
    assert [check.claim for part in parts for check in part.checks if not check.holds] == []
    assert sum(check.is_identity for part in parts for check in part.checks) >= 11


def test_approximations_are_near_where_their_assumptions_hold(parts):
    assert all(check.deviation < 0.02 for part in parts for check in part.checks if not check.is_identity)


def test_an_identity_that_fails_is_reported_as_failed():
    assert not Check("wrong", 1e-3).holds and "fails" in Check("wrong", 1e-3).text
    assert Check("rough", 1e-3, is_identity=False).text == "approximate, off by 0.1 %"


def test_the_sections_of_the_page_are_those_that_are_built(parts):
    page = PAGE.read_text(encoding="utf-8")
    for part in parts:
        built, kept = (
            part.markdown(),
            page.partition(f"<!-- study {part.key} -->\n")[2].partition("<!-- end")[0],
        )
        assert NUMBER.sub("#", built) == NUMBER.sub("#", kept), (
            "run: surgicalmamba study equations --docs docs/equations.md"
        )
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (built, kept)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-2, abs=1e-3)
        assert f"## {part.title}\n" in page
        for suffix in ("png", "svg"):
            assert (PAGE.parent / "images" / f"{part.key}.{suffix}").is_file()


def test_the_bounds_on_the_fall_that_the_page_names_are_those_of_the_code():
    low, high = widest_cheap_fall(PLATEAU_RATE), widest_fall(PLATEAU_RATE)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert (
        f"a = {PLATEAU_RATE:g}, the bounds on sigma_R are 0.31 / a and 0.55 / a, {low:.1f} and {high:.1f} "
        "frames" in text
    )


def test_a_kernel_is_measured_as_the_product_of_its_factors():
    # a frame on either side of the first boundary, by hand: decay, step of the write, write, rotation, read
    head = make_head(seed=3)
    s, t = CHUNK_LEN - 2, CHUNK_LEN + 1
    decay = math.exp(float((head.dt[0, s + 1 : t + 1, 0] * head.A).sum()))
    by_hand = decay * float(head.dt[0, s, 0]) * float(head.B[0, s, 0] @ head.Z[0] @ head.C[0, t, 0])
    assert float(measured_kernel(head, head.Z)[t, s]) == pytest.approx(by_hand)
    assert float(measured_kernel(head, head.Z)[s, t]) == 0  # nothing reads the future


def test_two_writes_collide_without_rotation_and_part_with_it():
    alone, parted = collide(4, 0.0), collide(4, 2.0)
    assert alone.recovered.max() < 1e-9 and parted.recovered.mean() > 0.9
    assert parted.leaked.max() < 1e-9


def test_bursts_cost_what_the_integrals_say_when_the_rate_is_low():
    assert cost_before(1e-5, 50.0) == pytest.approx(math.sqrt(math.pi / 2) * 50, rel=0.01)
    assert cost_after(1e-5, 50.0) == pytest.approx(2 * 1e-5 * 50**2, rel=0.01)


def test_energy_is_destroyed_only_where_there_is_intensity():
    quiet = torch.zeros(30, dtype=torch.float64)
    assert energy_destroyed(0.1, quiet, 5.0) == 0
    strike = quiet.clone()
    strike[0] = 1.0  # the first frame decays twice as fast: e^-0.2 of 5 would stay, e^-0.4 does
    assert energy_destroyed(0.1, strike, 5.0) == pytest.approx(5 * (math.exp(-0.2) - math.exp(-0.4)))


def test_beyond_the_widest_fall_a_write_on_the_boundary_loses():
    a = 0.02
    assert net_gain(a, 0.7 * widest_fall(a)) > 1 > net_gain(a, 1.4 * widest_fall(a))


def test_the_command_prints_every_statement_and_builds_the_page(monkeypatch, capsys, tmp_path):
    code, printed, complaint = call(
        monkeypatch, capsys, "study", "equations", "--docs", tmp_path / "page.md", "--json"
    )
    assert (code, complaint) == (0, "")
    document = json.loads(printed)["sections"]
    assert len(document) == 4 and all(
        check["holds"] for part in document.values() for check in part["checks"]
    )
    assert (tmp_path / "page.md").is_file() and len(list((tmp_path / "images").glob("equations-*.png"))) == 4
