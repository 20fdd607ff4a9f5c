"""The server without its network: full disk, locked database, drops, restarts, retention."""

import sqlite3
import time

import pytest

from rtsp import Camera, transport_stream
from served import uninterrupted_record
from surgicalmamba.data.pictures import decode_jpeg
from surgicalmamba.engines.engine import EagerEngine
from surgicalmamba.server.config import ServeConfig
from surgicalmamba.server.rooms import Life
from surgicalmamba.server.service import Service
from surgicalmamba.server.wire import FrameMessage, Reason, RefusalError


def until(condition, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def start(model, tmp_path):
    """Start a service on one folder; services still running are stopped at the end."""
    running = []

    def begin(**settings):
        service = Service(ServeConfig(data=tmp_path, commit_ms=10, **settings), EagerEngine(model), "small")
        service.start()
        running.append(service)
        return service

    yield begin
    for service in running:
        if service.is_ready:
            service.stop()


def give(service, room, pictures, start=0, times=True):
    for i, picture in enumerate(pictures, start):
        until(lambda i=i: not room.must_wait(i))
        room.take(
            FrameMessage(i, float(i) if times else None, "jpeg", b""), decode_jpeg(picture), time.time()
        )
        service.worker.wake()


def test_a_locked_database_degrades_the_state_and_nothing_else(start, pictures):
    service = start()
    room = service.create("Room", None, "wait", {})
    lock = sqlite3.connect(service.store.path, isolation_level=None)
    lock.execute("begin exclusive")
    give(service, room, pictures[:5])
    until(lambda: room.acknowledged == 4 and service.state == "degraded")
    assert room.durable == -1
    assert [row.row for row in service.rows(room.info.id, -1, -1)] == [
        0,
        1,
        2,
        3,
        4,
    ]  # shown, though not written
    lock.execute("rollback")
    until(lambda: room.durable == 4 and service.state == "ok")
    assert len(service.store.rows(room.info.id)) == 5


def test_a_full_disk_degrades_the_state_and_what_came_meanwhile_is_written_later(start, pictures, model):
    service = start()
    room = service.create("Room", None, "wait", {})
    (pages,) = service.store._writer.execute("pragma page_count").fetchone()
    service.store._writer.execute(f"pragma max_page_count = {pages}")
    give(service, room, pictures[:20])  # with two snapshots that do not fit
    until(lambda: room.acknowledged == 19 and service.state == "degraded")
    assert "full" in service.writer.failure
    service.store._writer.execute("pragma max_page_count = 1000000")
    until(lambda: room.durable == 19 and service.state == "ok")
    assert service.store.rows(room.info.id) == uninterrupted_record(model, pictures[:20], fps=1)


def test_a_session_can_begin_while_the_database_is_locked(start, pictures):
    service = start()
    lock = sqlite3.connect(service.store.path, isolation_level=None)
    lock.execute("begin exclusive")
    room = service.create("Room", None, "wait", {})
    give(service, room, pictures[:2])
    until(lambda: room.acknowledged == 1)
    lock.execute("rollback")
    until(lambda: room.durable == 1)


def test_a_session_that_ends_before_its_end_is_written_is_finished_at_once_and_never_waits_again(
    start, pictures
):
    service = start()
    room = service.create("Room", None, "wait", {})
    lock = sqlite3.connect(service.store.path, isolation_level=None)
    lock.execute("begin exclusive")
    unseen = service.create("Begun and ended while the database is locked", None, "wait", {})
    give(service, room, pictures[:2])
    for ended in (room, unseen):
        service.worker.finish(ended)
        until(lambda ended=ended: ended.life is Life.FINISHED)
    assert service.store.session(room.info.id).ending is None
    found = service.session(room.info.id)
    assert (found.ending.rows, found.durable) == (2, -1)
    newest_first = [unseen.info.id, room.info.id]
    assert [stored.info.id for stored in service.finished(10, None)] == newest_first
    assert [stored.info.id for stored in service.finished(1, None)] == newest_first[:1]
    assert [stored.info.id for stored in service.finished(10, unseen.info.created_s)] == newest_first[1:]
    lock.execute("rollback")
    until(lambda: service.state == "ok" and not service.writer.pending())
    assert service.session(room.info.id).durable == 1
    assert [stored.info.id for stored in service.finished(10, None)] == newest_first


def test_a_full_queue_drops_its_oldest_waiting_frame_and_counts_it(start, pictures, monkeypatch):
    service = start()
    room = service.create("Room", None, "drop", {})
    monkeypatch.setattr(service.worker, "_turn", lambda: False)  # the recognizer is behind
    give(service, room, pictures[:12])
    assert [entry.index for entry in room.queue if entry.is_dropped] == [0, 1, 2, 3]
    assert room.n_dropped == 4
    monkeypatch.undo()
    service.worker.wake()
    until(lambda: room.durable == 11)
    assert [row.frame for row in service.rows(room.info.id, -1, -1)] == list(range(4, 12))


def test_after_a_restart_the_dropped_frames_are_dropped_again_and_the_others_computed_to_the_bit(
    start, pictures, monkeypatch, model
):
    service = start(snapshot_frames=1000)
    room = service.create("Room", None, "drop", {})
    monkeypatch.setattr(service.worker, "_turn", lambda: False)
    give(service, room, pictures[:12])
    monkeypatch.undo()
    service.worker.wake()
    until(lambda: room.durable == 11)
    before = service.rows(room.info.id, -1, -1)
    service.worker._save_snapshots = lambda: None  # as if killed: no last snapshot
    service.stop()

    service = start(snapshot_frames=1000)
    room = service.worker.rooms[room.info.id]
    assert (room.next_index, room.keep_from, room.durable, room.n_dropped) == (0, 0, 11, 4)
    give(service, room, pictures[:14])
    until(lambda: room.durable == 13)
    assert "surgicalmamba_record_differences_total 0" in service.metrics.text({}) and room.n_dropped == 4
    after = service.rows(room.info.id, -1, -1)
    assert after[:8] == before and [row.frame for row in after] == list(range(4, 14))


def test_an_orderly_end_leaves_nothing_to_send_again(start, pictures, model):
    service = start()
    room = service.create("Room", None, "wait", {})
    give(service, room, pictures[:11])
    service.stop()
    service = start()
    room = service.worker.rooms[room.info.id]
    assert (room.next_index, room.keep_from, room.n_rows) == (11, 11, 11)
    give(service, room, pictures[11:20], start=11)
    until(lambda: room.durable == 19)
    assert service.rows(room.info.id, -1, -1) == uninterrupted_record(model, pictures[:20], fps=1)


def test_a_client_without_the_old_frames_goes_on_after_the_record(start, pictures):
    service = start(snapshot_frames=4)
    room = service.create("Room", None, "drop", {})
    give(service, room, pictures[:7])
    until(lambda: room.durable == 6)
    service.worker._save_snapshots = lambda: None
    service.stop()
    service = start(snapshot_frames=4)
    room = service.worker.rooms[room.info.id]
    assert (room.next_index, room.n_rows) == (4, 7)
    service.worker.skip(room)
    give(service, room, pictures[7:12], start=7)
    until(lambda: room.durable == 11)
    rows = service.rows(room.info.id, -1, -1)
    assert [row.row for row in rows] == list(range(len(rows)))
    assert [row.frame for row in rows][:7] == list(range(7)) and rows[-1].frame == 11
    service.worker._save_snapshots = lambda: None
    service.stop()
    room = start(snapshot_frames=4).worker.rooms[room.info.id]
    assert room.n_rows == len(rows) and room.next_index <= 12


def test_a_session_of_another_model_is_ended_with_the_reason(start, pictures, model, tmp_path):
    service = start()
    room = service.create("Room", None, "wait", {})
    give(service, room, pictures[:2])
    service.stop()
    connection = sqlite3.connect(service.store.path)
    connection.execute("update sessions set model = 'another'")
    connection.commit()
    service = start()
    until(lambda: service.store.finished(1, None))
    ending = service.store.finished(1, None)[0].ending
    assert "another model" in ending.note and ending.rows == 2


def test_old_sessions_are_deleted_and_abandoned_ones_finished(start, pictures):
    service = start(retention_days=1, abandon_h=2)
    old, idle = service.create("Old", None, "wait", {}), service.create("Idle", None, "wait", {})
    service.worker.finish(old)
    until(lambda: old.life is Life.FINISHED)
    assert service.writer.flush(10)
    service.tidy(time.time() + 3 * 3600)
    until(lambda: idle.life is Life.FINISHED)
    assert service.writer.flush(10)
    assert "abandoned" in service.store.session(idle.info.id).ending.note
    service.tidy(time.time() + 25 * 3600)
    assert service.store.session(old.info.id) is None


def test_a_file_from_the_settings_is_read_by_the_server(start, tmp_path_factory, model):
    from surgicalmamba.data.synthetic import operation
    from surgicalmamba.data.synthetic.recording import encode

    op = operation(1, 0, short=True, fps=2)
    file = tmp_path_factory.mktemp("videos") / "a.mp4"
    encode(file, (op.renderer.frame(i) for i in range(20)), 2)
    service = start(sources={"recorder": str(file)})
    room = service.create("Room", None, "wait", {}, "recorder")
    until(lambda: room.life is Life.FINISHED)
    assert service.writer.flush(10)
    assert [row.time_s for row in service.store.rows(room.info.id)] == [float(i) for i in range(10)]


def test_a_network_camera_from_the_settings_is_read_by_the_server_over_rtsp(start, tmp_path, model):
    camera = Camera(transport_stream(tmp_path / "a.ts", n_frames=20, fps=2))
    service = start(sources={"theatre": camera.url})
    room = service.create("Room", None, "wait", {}, "theatre")
    until(lambda: len(service.store.rows(room.info.id)) >= 8)
    service.worker.finish(room)
    camera.shutdown()
    camera.server_close()
    rows = service.store.rows(room.info.id)
    assert [row.row for row in rows] == list(range(len(rows))) and rows[0].time_s == 0


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (FrameMessage(0, 0.0, "jpeg", b""), Reason.DUPLICATE),
        (FrameMessage(3, 3.0, "jpeg", b""), Reason.GAP),
        (FrameMessage(1, -1.0, "jpeg", b""), Reason.TIME),
    ],
)
def test_a_frame_that_is_not_the_next_is_refused(start, pictures, frame, reason):
    service = start()
    room = service.create("Room", None, "wait", {})
    give(service, room, pictures[:1])
    with pytest.raises(RefusalError) as refusal:
        room.check(frame)
    assert refusal.value.reason is reason


def test_pictures_are_stored_only_where_the_settings_ask_for_it(start, pictures, tmp_path):
    service = start(keep_images=True)
    service.keep_picture("a" * 16, FrameMessage(3, None, "jpeg", pictures[0]))
    kept = tmp_path / "pictures" / ("a" * 16) / "00000003.jpg"
    assert kept.read_bytes() == pictures[0]
    service.delete("a" * 16)
    assert not kept.exists()
    assert ServeConfig().keep_images is False
