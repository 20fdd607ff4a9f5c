"""docs/server.md: calls, messages, reasons, settings and limits are those of the code."""

import json
import re

import pytest
import yaml

from docs.blocks import ROOT, blocks
from surgicalmamba.live.estimate import PhaseEstimate, ServedEstimate
from surgicalmamba.server.config import LimitsConfig, ServeConfig
from surgicalmamba.server.wire import ENVELOPE_BYTES, Estimated, Marks, Reason, pack_frame, to_json

PAGE = ROOT / "docs" / "server.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_table_of_calls_is_that_of_the_server():
    pytest.importorskip(
        "fastapi", reason="the server's packages are not installed: pip install 'surgicalmamba[serve]'"
    )
    from surgicalmamba.server import api as routers

    shown = set(re.findall(r"`(GET|POST|DELETE) (/[\w/{}.]+)`", TEXT))
    shown |= {("GET", "/v1/sessions/{session}/export.json")} if "`export.json`" in TEXT else set()
    served = {
        (method, route.path)
        for router in (routers.api, routers.public)
        for route in router.routes
        for method in route.methods
    }
    assert shown <= served
    assert served - shown == {("GET", "/v1/about")}  # the page in the browser asks for it


def test_the_example_of_an_answer_has_the_fields_of_an_answer():
    [example] = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
    estimate = ServedEstimate.of(PhaseEstimate(0, 0, 0.0, 0, "", (1.0,), 0.0), row=0, frame=0)
    made = json.loads(to_json(Estimated("", estimate, 0.0, replayed=False), Marks(0, 0, 0), "ok", 0))
    assert example.keys() == made.keys()
    assert example["phase"] == max(range(7), key=example["probabilities"].__getitem__) and sum(
        example["probabilities"]
    ) == pytest.approx(1)


def test_every_reason_of_a_refusal_is_named():
    sentence = TEXT.split("is `refused` with a reason:")[1].split(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == {reason.value for reason in Reason}


def test_the_envelope_is_laid_out_as_the_table_says():
    last = max(
        int(last or first) for first, last in re.findall(r"^\| (\d+)(?: to (\d+))? \|", TEXT, re.MULTILINE)
    )
    assert f"envelope of {ENVELOPE_BYTES} bytes" in TEXT and last == ENVELOPE_BYTES - 1
    message = pack_frame(5, 2.0, b"\xff\xd8...")
    assert (message[:4], message[4], message[5], message[6:8]) == (b"SMFR", 1, 1, b"\0\0")
    assert int.from_bytes(message[8:16], "little") == 5


def test_the_settings_shown_are_accepted_and_those_named_exist():
    [shown] = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.file == "server.yaml"]
    ServeConfig(**shown)
    fields = set(ServeConfig.model_fields) | {f"limits.{name}" for name in LimitsConfig.model_fields}
    for named in re.findall(r"`(limits\.\w+|retention_days|abandon_h|keep_images|commit_ms|lanes)\b", TEXT):
        assert named in fields
