"""Pictures from the network: decoded exactly, or refused before they cost anything."""

import struct
import zlib

import cv2
import numpy as np
import pytest

from surgicalmamba.data.pictures import decode_jpeg, encode_jpeg
from surgicalmamba.server.config import LimitsConfig
from surgicalmamba.server.wire import FrameMessage, Reason, RefusalError, decode

LIMITS = LimitsConfig(frame_bytes=200_000, frame_pixels=640 * 480)
RGB = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
JPEG = encode_jpeg(RGB)
PNG = cv2.imencode(".png", RGB[..., ::-1])[1].tobytes()


def refusal_of(data, kind):
    with pytest.raises(RefusalError) as refusal:
        decode(FrameMessage(0, None, kind, data), LIMITS)
    return refusal.value.reason


def png_header(width, height):
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(b"\0" * 100)
    pieces = [
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, body, b"IEND")
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(pieces)


def test_a_png_comes_out_as_it_was():
    assert np.array_equal(decode(FrameMessage(0, None, "png", PNG), LIMITS), RGB)


def test_a_jpeg_comes_out_as_the_package_decodes_it_elsewhere():
    assert np.array_equal(decode(FrameMessage(0, None, "jpeg", JPEG), LIMITS), decode_jpeg(JPEG))


@pytest.mark.parametrize("kept", [2, 20, len(JPEG) // 2, len(JPEG) - 2])
def test_a_truncated_jpeg_is_refused(kept):
    assert refusal_of(JPEG[:kept], "jpeg") is Reason.IMAGE


@pytest.mark.parametrize("kept", [8, 30, len(PNG) // 2, len(PNG) - 1])
def test_a_truncated_png_is_refused(kept):
    assert refusal_of(PNG[:kept], "png") is Reason.IMAGE


def test_a_png_under_the_name_of_a_jpeg_is_refused():
    assert refusal_of(PNG, "jpeg") is Reason.IMAGE


def test_a_decompression_bomb_is_refused_by_its_header_alone(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("decoded a bomb"))
    assert refusal_of(png_header(60_000, 60_000), "png") is Reason.PIXELS


def test_a_giant_jpeg_is_refused_by_its_header_alone():
    at = JPEG.index(b"\xff\xc0") + 5
    giant = JPEG[:at] + struct.pack(">HH", 65_000, 65_000) + JPEG[at + 4 :]
    assert refusal_of(giant, "jpeg") is Reason.PIXELS


@pytest.mark.parametrize(("width", "height"), [(640, 8), (8, 640), (600, 30), (0, 0)])
def test_slivers_are_refused(width, height):
    assert refusal_of(png_header(width, height), "png") is Reason.PIXELS


def test_too_many_bytes_are_refused():
    assert refusal_of(JPEG + b"\0" * 200_000, "jpeg") is Reason.BYTES


def test_a_jpeg_of_thousands_of_scans_is_refused():
    assert refusal_of(JPEG[:-2] + b"\xff\xda" * 100 + JPEG[-2:], "jpeg") is Reason.IMAGE
