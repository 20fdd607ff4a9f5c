"""Numbers for Prometheus, in its text format."""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterable, Mapping

# Structured logs: one JSON object per line on stderr. No frame content, no tokens, no addresses of sources.


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line, with whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str = "INFO") -> None:
    """Send the server's and uvicorn's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, at in (("surgicalmamba.server", level), ("uvicorn", "WARNING"), ("uvicorn.error", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = (
            [handler] if name != "uvicorn.error" else [],
            name == "uvicorn.error",
        )
        logger.setLevel(at)


_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """A number that only grows, by label where there are labels."""

    def __init__(self) -> None:
        self._values: dict[tuple[tuple[str, str], ...], float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def samples(self) -> list[tuple[dict[str, str], float]]:
        with self._lock:
            return [(dict(key), value) for key, value in sorted(self._values.items())] or [({}, 0)]


class Histogram:
    """Durations, counted in bins."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        place = sum(seconds > bound for bound in _BOUNDS_S)
        with self._lock:
            self._counts[place] += 1
            self._sum += seconds

    def lines(self, name: str) -> list[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, below = [], 0
        for bound, count in zip((*_BOUNDS_S, float("inf")), counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {below}')
        return [*lines, f"{name}_sum {total:.9g}", f"{name}_count {below}"]


class Metrics:
    """What the server counts. Gauges are read from the server when somebody asks."""

    def __init__(self) -> None:
        self.estimates, self.dropped, self.refused, self.differed = Counter(), Counter(), Counter(), Counter()
        self.requests = Counter()
        self.latency_s, self.tick_s = Histogram(), Histogram()

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything. `gauges` maps a name to its help and value."""
        lines: list[str] = []
        counters: Iterable[tuple[str, str, Counter]] = (
            ("estimates_total", "Estimates computed.", self.estimates),
            ("frames_dropped_total", "Frames dropped because the recognizer was behind.", self.dropped),
            ("refused_total", "Messages refused, by reason.", self.refused),
            (
                "record_differences_total",
                "Recomputed estimates that did not equal the record.",
                self.differed,
            ),
            ("http_requests_total", "Requests answered, by status.", self.requests),
        )
        for name, about, counter in counters:
            lines += [f"# HELP surgicalmamba_{name} {about}", f"# TYPE surgicalmamba_{name} counter"]
            for labels, value in counter.samples():
                inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
                lines.append(
                    f"surgicalmamba_{name}{{{inner}}} {value:g}"
                    if inner
                    else f"surgicalmamba_{name} {value:g}"
                )
        for name, about, histogram in (
            ("latency_seconds", "From a frame's arrival to its estimate.", self.latency_s),
            ("tick_seconds", "One batch of the recognizer.", self.tick_s),
        ):
            lines += [f"# HELP surgicalmamba_{name} {about}", f"# TYPE surgicalmamba_{name} histogram"]
            lines += histogram.lines(f"surgicalmamba_{name}")
        for name, (about, value) in gauges.items():
            lines += [
                f"# HELP surgicalmamba_{name} {about}",
                f"# TYPE surgicalmamba_{name} gauge",
                f"surgicalmamba_{name} {value:g}",
            ]
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
