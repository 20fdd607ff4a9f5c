"""The Python client, the frame connection and the events, against a real server process."""

import json
import threading
import urllib.request

import pytest

import surgicalmamba as sm
from served import uninterrupted_record
from surgicalmamba.errors import ConfigError, ServerError
from surgicalmamba.server.wire import pack_frame


def test_pushed_frames_come_back_as_the_estimates_of_the_recognizer_alone(server, model, pictures):
    with sm.Client(server.url).create("Room 1") as remote:
        estimates = [e for i, picture in enumerate(pictures) for e in remote.push(picture, float(i))]
        estimates += remote.wait()
        csv = remote.export_csv()
    wanted = uninterrupted_record(model, pictures, fps=1)
    assert [(e.row, e.frame, e.time_s, e.phase, e.probabilities) for e in estimates] == [
        (row.row, row.frame, row.time_s, row.phase, row.probabilities) for row in wanted
    ]
    assert estimates[0].name == remote.phases[estimates[0].phase]
    assert len(csv.splitlines()) == 1 + len(pictures)


def test_a_picture_that_cannot_be_read_is_refused_held_and_passed_over(server, pictures):
    with sm.Client(server.url).create("Room 2") as remote:
        estimates = remote.push(pictures[0], 0.0)
        estimates += remote.push(pictures[1][:200], 1.0)
        estimates += remote.push(pictures[2], 2.0)
        estimates += remote.wait()
    assert [(frame, reason) for frame, reason, _ in remote.refused] == [(1, "image")]
    assert [(e.frame, e.quality) for e in estimates][-2:] == [(1, "unreadable"), (2, "ok")]


def test_the_newest_connection_has_the_session(server, pictures):
    client = sm.Client(server.url)
    old = client.create("Room 3")
    old.push(pictures[0], 0.0)
    old.wait()
    new = client.open(old.id)
    assert new.next_index == 1
    with pytest.raises(ServerError, match="another connection"):
        old.wait_for_news = [old._receive(5) for _ in range(3)]
    new.push(pictures[1], 1.0)
    new.finish()


def test_viewers_follow_by_server_sent_events_and_miss_nothing(server, pictures):
    client = sm.Client(server.url)
    remote = client.create("Room 4")
    for i in range(5):
        remote.push(pictures[i], float(i))
    remote.wait()
    heard = []

    def follow():
        with urllib.request.urlopen(
            f"{server.url}/v1/sessions/{remote.id}/events?after=1", timeout=30
        ) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    heard.append(json.loads(line[6:]))
                    if heard[-1]["type"] == "finished":
                        return

    viewer = threading.Thread(target=follow)
    viewer.start()
    for i in range(5, 12):
        remote.push(pictures[i], float(i))
    remote.finish()
    viewer.join(30)
    assert [m["row"] for m in heard if m["type"] == "estimate"] == list(range(2, 12))
    assert heard[0]["type"] == "state" and heard[-1]["type"] == "finished"


def test_an_end_by_sigterm_drains_and_the_session_goes_on_without_resending(server, pictures):
    remote = sm.Client(server.url).create("Room 5")
    for i in range(5):
        remote.push(pictures[i], float(i))
    assert server.stop() == 0
    server.start()
    remote.push(pictures[5], 5.0)
    rows = [e.row for e in remote.wait()]
    assert rows[-1] == 5 and remote.reconnects >= 1
    assert sm.Client(server.url).request("GET", f"/v1/sessions/{remote.id}")["rows"] == 6
    remote.finish()


def test_frames_are_accepted_as_arrays_too(server):
    import numpy as np

    with sm.Client(server.url).create("Room 6") as remote:
        remote.push(np.random.default_rng(0).integers(0, 255, (64, 80, 3), np.uint8))
        assert [e.row for e in remote.wait()] == [0]


def test_a_server_that_is_not_there_is_named_in_one_line():
    with pytest.raises(ServerError, match=r"http://127.0.0.1:9 did not answer .* is the server running"):
        sm.Client("http://127.0.0.1:9", patience_s=0.1).create("Room")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="is not the address of a server"):
        sm.Client("localhost:8571")


def test_what_the_server_refuses_is_said(server):
    with pytest.raises(ServerError, match="409, there is no source"):
        sm.Client(server.url).request("POST", "/v1/sessions", {"name": "a", "source": "nothing"})


def test_a_recording_is_streamed_to_a_server_by_the_command(server, tmp_path):
    from typer.testing import CliRunner

    from surgicalmamba.cli.main import app
    from surgicalmamba.data.synthetic import operation
    from surgicalmamba.data.synthetic.recording import encode

    op = operation(2, 0, short=True, fps=2)
    encode(tmp_path / "case.mp4", (op.renderer.frame(i) for i in range(16)), 2)
    arguments = [
        "stream",
        str(tmp_path / "case.mp4"),
        "--server",
        server.url,
        "--out",
        str(tmp_path / "case.csv"),
        "--json",
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["frames"], summary["estimates"], summary["dropped"]) == (8, 8, 0)
    assert len((tmp_path / "case.csv").read_text().splitlines()) == 9


def test_a_frame_after_the_end_is_refused(server, pictures):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    remote = sm.Client(server.url).create("Room 7")
    remote.finish()
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws{server.url[4:]}/v1/sessions/{remote.id}/frames") as connection,
    ):
        connection.send(pack_frame(0, None, pictures[0]))
    assert refused.value.response.status_code == 409


def test_a_client_that_reconnects_reports_every_estimate_as_it_was(server, pictures):
    client = sm.Client(server.url)
    first = client.create("Room 8")
    sent = (pictures[0], pictures[0], pictures[1][:200], pictures[2])
    live = [e for index, picture in enumerate(sent) for e in first.push(picture, float(index))] + first.wait()
    assert [e.quality for e in live] == ["ok", "frozen", "unreadable", "ok"]
    again = client.open(first.id, can_resend=True)
    assert again.listen(0.1) == live
    again.finish()
