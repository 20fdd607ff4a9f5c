"""Pictures from the network: bounded before they are decoded, refused with a reason when they are not what they claim."""

import struct

import numpy as np
from numpy.typing import NDArray

from surgicalmamba.serve.config import LimitsConfig
from surgicalmamba.serve.messages import FrameMessage, Reason, RefusalError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
LEAST_SIDE = 16
LARGEST_ASPECT = 16
MOST_SCANS = 64
"""A progressive JPEG with thousands of scans costs minutes to decode; cameras write one, image tools about ten."""


def decode(frame: FrameMessage, limits: LimitsConfig) -> NDArray[np.uint8]:
    """The picture (h, w, 3), red first. Raises RefusalError."""
    if len(frame.data) > limits.frame_bytes:
        raise RefusalError(Reason.BYTES, f"the picture has {len(frame.data)} bytes; the limit is {limits.frame_bytes}.")
    height, width = _jpeg_size(frame.data) if frame.kind == "jpeg" else _png_size(frame.data)
    _check_size(height, width, limits)
    rgb = _decode_jpeg(frame.data) if frame.kind == "jpeg" else _decode_png(frame.data)
    if rgb.shape != (height, width, 3):
        raise RefusalError(Reason.IMAGE, f"the header says {width} x {height}, the picture is {rgb.shape[1]} x {rgb.shape[0]}.")
    return rgb


def _check_size(height: int, width: int, limits: LimitsConfig) -> None:
    if height * width > limits.frame_pixels:
        raise RefusalError(Reason.PIXELS, f"the picture is {width} x {height}; the limit is {limits.frame_pixels} pixels.")
    short, long = sorted((height, width))
    if short < LEAST_SIDE or long > LARGEST_ASPECT * short:
        raise RefusalError(Reason.PIXELS, f"the picture is {width} x {height}; sides of at least {LEAST_SIDE} and no slivers, please.")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise RefusalError(Reason.IMAGE, f"not a JPEG file that can be read ({error}).") from None
    if data.count(b"\xff\xda") > MOST_SCANS:
        raise RefusalError(Reason.IMAGE, f"a JPEG with more than {MOST_SCANS} scans; write it as a baseline JPEG.")
    return int(height), int(width)


def _png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 33 or not data.startswith(PNG_SIGNATURE) or data[12:16] != b"IHDR":
        raise RefusalError(Reason.IMAGE, "not a PNG file: it does not begin with a PNG header.")
    width, height = struct.unpack(">II", data[16:24])
    return height, width


def _decode_jpeg(data: bytes) -> NDArray[np.uint8]:
    import simplejpeg

    try:
        return np.asarray(simplejpeg.decode_jpeg(data, "RGB", strict=True), np.uint8)
    except ValueError as error:
        raise RefusalError(Reason.IMAGE, f"the JPEG is truncated or damaged ({error}).") from None


def _decode_png(data: bytes) -> NDArray[np.uint8]:
    import cv2

    # A cut-off PNG would be decoded to its first rows; the end marker tells.
    if data[-8:-4] != b"IEND":
        raise RefusalError(Reason.IMAGE, "the PNG is truncated: its end marker is missing.")
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        bgr = None
    if bgr is None:
        raise RefusalError(Reason.IMAGE, "the PNG is damaged.")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
