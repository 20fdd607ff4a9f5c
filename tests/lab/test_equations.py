"""`study equations`: the identities hold, and docs/equations.md is what the command builds."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from command import call
from surgicalmamba.insight import regime as retention
from surgicalmamba_lab.studies import equations_intensity as intensity
from surgicalmamba_lab.studies import equations_rotation as rotation
from surgicalmamba_lab.studies.equations import page_text, sections
from surgicalmamba_lab.studies.equations_page import Check

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


def test_an_identity_that_fails_is_told_as_failed():
    assert not Check("wrong", 1e-3).holds and "fails" in Check("wrong", 1e-3).told
    assert Check("rough", 1e-3, is_identity=False).told == "approximate, off by 0.1 %"


def test_the_page_in_the_documents_is_the_one_that_is_built(parts):
    built, kept = page_text(parts), PAGE.read_text(encoding="utf-8")
    assert NUMBER.sub("#", built) == NUMBER.sub("#", kept), "run: surgicalmamba study equations --docs docs/equations.md"
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (built, kept)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-2, abs=1e-3)
    for part in parts:
        for suffix in ("png", "svg"):
            assert (PAGE.parent / "images" / f"{part.figure_name}.{suffix}").is_file()


def test_a_kernel_is_measured_as_the_product_of_its_factors():
    # two frames either side of the first boundary, by hand: decay between them, write, one rotation, read, step of the write
    head = rotation.make_head(seed=3)
    s, t = rotation.CHUNK_LEN - 2, rotation.CHUNK_LEN + 1
    decay = math.exp(float((head.dt[0, s + 1 : t + 1, 0] * head.A).sum()))
    by_hand = decay * float(head.dt[0, s, 0]) * float(head.B[0, s, 0] @ head.Z[0] @ head.C[0, t, 0])
    assert float(rotation.measured_kernel(head, head.Z)[t, s]) == pytest.approx(by_hand)
    assert float(rotation.measured_kernel(head, head.Z)[s, t]) == 0  # nothing reads the future


def test_two_writes_collide_without_rotation_and_part_with_it():
    alone, parted = rotation.collide(4, 0.0), rotation.collide(4, 2.0)
    assert alone.recovered.max() < 1e-9 and parted.recovered.mean() > 0.9
    assert parted.leaked.max() < 1e-9


def test_bursts_cost_what_the_integrals_say_when_the_rate_is_low():
    assert intensity.cost_before(1e-5, 50.0) == pytest.approx(math.sqrt(math.pi / 2) * 50, rel=0.01)
    assert intensity.cost_after(1e-5, 50.0) == pytest.approx(2 * 1e-5 * 50**2, rel=0.01)


def test_energy_is_destroyed_only_where_there_is_intensity():
    quiet = torch.zeros(30, dtype=torch.float64)
    assert intensity.energy_destroyed(0.1, quiet, 5.0) == 0
    strike = quiet.clone()
    strike[0] = 1.0  # the first frame decays twice as fast: e^-0.2 of 5 would stay, e^-0.4 does
    assert intensity.energy_destroyed(0.1, strike, 5.0) == pytest.approx(5 * (math.exp(-0.2) - math.exp(-0.4)))


def test_beyond_the_widest_fall_a_write_on_the_boundary_loses():
    a = 0.02
    assert intensity.net_gain(a, 0.7 * retention.widest_fall(a)) > 1 > intensity.net_gain(a, 1.4 * retention.widest_fall(a))


def test_the_command_prints_every_statement_and_builds_the_page(monkeypatch, capsys, tmp_path):
    code, printed, complaint = call(monkeypatch, capsys, "study", "equations", "--docs", tmp_path / "page.md", "--json")
    assert (code, complaint) == (0, "")
    document = json.loads(printed)["sections"]
    assert len(document) == 4 and all(check["holds"] for part in document.values() for check in part["checks"])
    assert (tmp_path / "page.md").is_file() and len(list((tmp_path / "images").glob("equations-*.png"))) == 4
