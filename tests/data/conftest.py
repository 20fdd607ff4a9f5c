"""Small recordings whose frames carry their own number, so that a test can read which frame it got."""

from fractions import Fraction

import av
import numpy as np
import pytest

HEIGHT, WIDTH, BITS = 96, 160, 10
BLOCK = WIDTH // BITS


def picture_of(number: int) -> np.ndarray:
    """A grey picture with the number's bits as black and white blocks in the upper half and a moving stripe
    below."""
    rgb = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    for bit in range(BITS):
        rgb[: HEIGHT // 2, bit * BLOCK : (bit + 1) * BLOCK] = 235 if number >> bit & 1 else 20
    rgb[HEIGHT // 2 :, (number * 3) % (WIDTH - 8) : (number * 3) % (WIDTH - 8) + 8] = (200, 60, 60)
    return rgb


def number_in(rgb: np.ndarray) -> int:
    """The number that a decoded picture carries."""
    height, width = rgb.shape[:2]
    centres = [rgb[height // 4, int((bit + 0.5) * width / BITS)].mean() > 128 for bit in range(BITS)]
    return sum(1 << bit for bit, on in enumerate(centres) if on)


def write_video(
    path,
    n_frames,
    fps=25,
    codec="libx264",
    options=None,
    gop=None,
    times=None,
    picture=picture_of,
    size_hw=(HEIGHT, WIDTH),
):
    """Encode numbered pictures. `times` gives uneven presentation times in milliseconds."""
    with av.open(
        str(path), "w", options={"movflags": "faststart"} if str(path).endswith(".mp4") else {}
    ) as container:
        stream = container.add_stream(codec, rate=Fraction(fps))
        stream.height, stream.width = size_hw
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = dict(options or {})
        if gop is not None:
            stream.gop_size = gop
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(n_frames):
            frame = av.VideoFrame.from_ndarray(picture(i))
            if times is not None:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_audio(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="session")
def numbered():
    """`numbered.write(path, n)` makes a recording; `numbered.read(rgb)` returns the frame number
    of a picture."""

    class Numbered:
        write = staticmethod(write_video)
        audio = staticmethod(write_audio)
        read = staticmethod(number_in)
        picture = staticmethod(picture_of)
        size_hw = (HEIGHT, WIDTH)

    return Numbered
