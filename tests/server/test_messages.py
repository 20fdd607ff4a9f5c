"""The envelope, byte by byte, and every way to get it wrong."""

import json
import math
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgicalmamba.errors import InputError
from surgicalmamba.server.wire import (
    ENVELOPE_BYTES,
    Marks,
    Progress,
    Reason,
    RefusalError,
    pack_frame,
    to_json,
    unpack_frame,
)

JPEG = b"\xff\xd8rest"


def test_the_envelope_is_24_bytes_in_the_documented_order():
    packed = pack_frame(7, 1.5, JPEG)
    assert packed == b"SMFR" + b"\x01\x01\x00\x00" + struct.pack("<q", 7) + struct.pack("<d", 1.5) + JPEG
    assert ENVELOPE_BYTES == 24


@given(
    st.integers(0, 2**53 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=50),
)
def test_what_is_packed_is_unpacked(index, time_s, rest):
    frame = unpack_frame(pack_frame(index, time_s, b"\x89PNG\r\n\x1a\n" + rest))
    assert (frame.index, frame.time_s, frame.kind, frame.data) == (
        index,
        time_s,
        "png",
        b"\x89PNG\r\n\x1a\n" + rest,
    )


def envelope(magic=b"SMFR", version=1, kind=1, zero=0, index=0, time_s=0.0):
    return struct.pack("<4sBBHqd", magic, version, kind, zero, index, time_s) + JPEG


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", Reason.SHORT),
        (envelope()[:23], Reason.SHORT),
        (b"hello, this is plain text, not a frame", Reason.MAGIC),
        (envelope(version=2), Reason.VERSION),
        (envelope(zero=1), Reason.VERSION),
        (envelope(kind=3), Reason.KIND),
        (envelope(index=-1), Reason.INDEX),
        (envelope(index=2**53), Reason.INDEX),
        (envelope(time_s=math.inf), Reason.TIME),
    ],
)
def test_a_malformed_envelope_is_refused_with_its_reason(message, reason):
    with pytest.raises(RefusalError) as refusal:
        unpack_frame(message)
    assert refusal.value.reason is reason


@given(st.binary(max_size=200))
def test_no_bytes_at_all_do_anything_but_unpack_or_be_refused(message):
    with suppress(RefusalError):
        unpack_frame(message)


def test_bytes_that_are_no_picture_are_not_packed():
    with pytest.raises(InputError, match="JPEG or PNG"):
        pack_frame(0, None, b"GIF89a")


def test_an_answer_carries_version_marks_state_and_drops():
    answer = json.loads(to_json(Progress("ab"), Marks(5, 3, 2), "degraded", 4))
    expected = {
        "v": 1,
        "type": "progress",
        "session": "ab",
        "acknowledged": 5,
        "durable": 3,
        "keep_from": 2,
        "state": "degraded",
        "dropped": 4,
    }
    assert answer == expected
