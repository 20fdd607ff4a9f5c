"""Generated requests over the whole description: no answer is a server error, and each is one the description
names."""

import json
from contextlib import suppress
from urllib.request import urlopen

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS, load_all_checks

from surgicalmamba_lab.bench.serve import ServerProcess

load_all_checks()
WANTED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = 6


def test_no_generated_request_breaks_the_server(checkpoint, tmp_path):
    """Streams of events do not end and are followed in test_client."""
    with ServerProcess(
        checkpoint, tmp_path, ("limits.requests_per_s=100000", "limits.sessions=4", "commit_ms=10")
    ) as server:
        with urlopen(f"{server.url}/v1/openapi.json") as answer:
            schema = schemathesis.openapi.from_dict(json.load(answer))
        schema.config.base_url = server.url
        ask_everything(schema)
        assert "Traceback" not in server.log()


def ask_everything(schema):
    checks = [CHECKS.get_one(name) for name in WANTED]
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("events"):
            continue
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                derandomize=True,
            )
            def ask(case):
                asked.add((case.method, case.path))
                answer = case.call()
                case.validate_response(answer, checks=checks)

            with suppress(Unsatisfiable):  # what has no parameters cannot be asked wrongly
                ask()
    assert len(asked) == len(schema) - 2
