"""The model's time: which frames of a source, at whatever rate it comes, become samples at the model's rate.

Tick k of a session lies `k / fps` seconds after its first frame. A tick is shown the first frame at or after it, where "at" allows for
half the distance to the frame before (and never more than half a tick): a camera of 25 frames per second is sampled exactly as
`prepare` samples its recording, and a source that sends once a second with some jitter loses nothing. Ticks that no frame fell on are
missing; a source slower than the model misses some regularly."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from surgicalmamba.errors import InputError


@dataclass(frozen=True)
class Clock:
    """Where a stream stands. `read` returns the clock after a frame, so that a caller can keep the one before."""

    fps: Fraction
    zero_s: float | None = None
    """Source time of the first frame."""
    last_s: float | None = None
    """Source time of the last frame, sampled or not."""
    interval_s: float | None = None
    """Distance of the last two frames that were apart."""
    last_tick: int = -1
    """The last tick that a frame fell on."""

    def read(self, time_s: float | None) -> tuple["Clock", int | None]:
        """The clock after a frame, and the tick the frame falls on; None if it lies between two.

        `time_s` None says that the frame is the next sample. Raises InputError for a time before the last one."""
        if time_s is None:
            tick = self.last_tick + 1
            at = self.tick_s(tick)
            last = at if self.last_s is None else max(at, self.last_s)
            zero = at if self.zero_s is None else self.zero_s
            return replace(self, zero_s=zero, last_s=last, interval_s=float(1 / self.fps), last_tick=tick), tick
        if not math.isfinite(time_s):
            raise InputError(f"time_s={time_s} is no time; give seconds, or None for the next sample.")
        if self.zero_s is None or self.last_s is None:
            return replace(self, zero_s=time_s, last_s=time_s, last_tick=0), 0
        if time_s < self.last_s:
            raise InputError(
                f"time_s={time_s:.3f} lies before the last frame at {self.last_s:.3f} s; a session only moves forward. "
                "Send frames in order, or open a new session."
            )
        gone_s = time_s - self.last_s
        apart_s = min((s for s in (gone_s, self.interval_s) if s), default=0.0)
        early = min(Fraction(apart_s) * self.fps, Fraction(1)) / 2
        tick = math.floor((Fraction(time_s) - Fraction(self.zero_s)) * self.fps + early)
        clock = replace(self, last_s=time_s, interval_s=gone_s or self.interval_s)
        return (replace(clock, last_tick=tick), tick) if tick > self.last_tick else (clock, None)

    def tick_s(self, tick: int) -> float:
        """Source time of a tick."""
        return (self.zero_s or 0.0) + float(tick / self.fps)
