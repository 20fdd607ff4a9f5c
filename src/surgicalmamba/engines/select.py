"""Open an engine by name. An engine that does not compute what eager computes on a few frames is refused.

The choice of `auto` and exported graphs are kept in the user's cache folder. Everything in it can be deleted
at any time; a file that cannot be read is ignored."""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median

import torch

from surgicalmamba.engines.engine import EagerEngine, Engine
from surgicalmamba.errors import DataError, EngineError, SessionError
from surgicalmamba.files import make_folder, write_atomic
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.version import __version__

ENGINE_NAMES = ("auto", "eager", "compiled", "onnx", "onnx-int8")
MEASURED_FRAMES = 7
FAST_ENOUGH_MS = 40.0
"""Where eager computes a frame in this time, no other engine is worth a minute of preparation."""

Notify = Callable[[str], None]


def open_engine(
    model: AnyRecognizer, name: str = "auto", *, threads: int | None = None, notify: Notify | None = None
) -> Engine:
    """The engine of this name for a model. `auto` is eager where that is fast enough, else the fastest of
    those that agree with eager in float32; the measurement is cached for the next start. `threads` is for
    ONNX Runtime; torch has its own setting. `notify` is called with a message before a long step."""
    if name not in ENGINE_NAMES:
        raise SessionError(f"unknown engine {name!r}; choose one of: {', '.join(ENGINE_NAMES)}.")
    notify = notify or (lambda _: None)
    eager = EagerEngine(model)
    if name == "eager" or (name == "auto" and not isinstance(model, SurgicalMamba)):
        return eager
    if not isinstance(model, SurgicalMamba):
        raise SessionError(f"the {name} engine runs SurgicalMamba only; {model.name} runs on eager.")
    if name == "auto":
        return _fastest(model, eager, threads, notify)
    return _checked(build(model, name, threads, notify), eager)


def open_exported(folder: str | Path, *, threads: int | None = None) -> Engine:
    """The engine of an export folder, checked against eager's outputs, which were written at export."""
    from surgicalmamba.engines.export import ANSWERS_FILE
    from surgicalmamba.engines.onnx import OnnxEngine
    from surgicalmamba.engines.parity import read_answers, require

    engine = OnnxEngine(Path(folder), threads)
    require(engine, read_answers(Path(folder) / ANSWERS_FILE))
    return engine


def build(model: SurgicalMamba, name: str, threads: int | None, notify: Notify) -> Engine:
    """An engine that is not checked yet."""
    if name == "compiled":
        from surgicalmamba.engines.compiled import CompiledEngine

        notify("compiling the model; this takes a minute or two")
        return CompiledEngine(model)
    return _from_cached_export(model, name == "onnx-int8", threads, notify)


def _from_cached_export(model: SurgicalMamba, int8: bool, threads: int | None, notify: Notify) -> Engine:
    """The engine of a cached export, which is written when it is missing or does not load."""
    from surgicalmamba.engines.export import export
    from surgicalmamba.engines.onnx import OnnxEngine, onnx_runtime

    onnx_runtime()
    base = cache_folder() / "exports" / export_key(fingerprint(model))
    exact, folder = base / "fp32", base / ("int8" if int8 else "fp32")
    try:
        return OnnxEngine(folder, threads)
    except EngineError:
        shutil.rmtree(folder, ignore_errors=True)
    notify("exporting the model to ONNX; this takes a minute or two and is cached for the next start")
    export(model, folder, int8=int8, graphs_from=exact if int8 and exact.is_dir() else None)
    return OnnxEngine(folder, threads)


def _checked(engine: Engine, eager: EagerEngine) -> Engine:
    from surgicalmamba.engines.parity import answers, require

    require(engine, answers(eager))
    return engine


def _fastest(model: SurgicalMamba, eager: EagerEngine, threads: int | None, notify: Notify) -> Engine:
    device = model.head.classifier.weight.device
    # Engines in float32, without those that were slower in every measurement so far and slow to prepare.
    names = ("eager", "compiled") if device.type == "cuda" else ("eager", "onnx")
    key = setting_key(fingerprint(model), str(device), threads or torch.get_num_threads())
    chosen = read_choice(key, names)
    if chosen is not None:
        try:
            return eager if chosen == "eager" else _checked(build(model, chosen, threads, notify), eager)
        except EngineError as error:
            notify(f"the engine chosen before no longer works, choosing again: {error}")
    engines: dict[str, Engine] = {"eager": eager}
    if min(frame_times_ms(engines)["eager"]) < FAST_ENOUGH_MS:
        return eager
    for name in names[1:]:
        try:
            engines[name] = _checked(build(model, name, threads, notify), eager)
        except EngineError as error:
            notify(f"{name} is left out: {error}")
    frame_ms = {name: median(times) for name, times in frame_times_ms(engines).items()}
    best = min(frame_ms, key=lambda name: frame_ms[name])
    write_choice(key, best, frame_ms)
    times = ", ".join(f"{name} {value:.1f} ms" for name, value in frame_ms.items())
    notify(f"engine: {best} ({times} per frame)")
    return engines[best]


def frame_times_ms(engines: dict[str, Engine]) -> dict[str, list[float]]:
    """Milliseconds of single whole frames in each engine, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(MEASURED_FRAMES + 1):
        for name, engine in engines.items():
            start = time.perf_counter()
            _one_frame(engine)
            if turn:  # the first turn warms up
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def _one_frame(engine: Engine) -> None:
    from surgicalmamba.engines.parity import check_features, check_pictures, model_config

    config, state = model_config(engine), engine.initial_state(1)
    has_pictures = config.backbone is not None
    features = engine.encode(check_pictures(config)) if has_pictures else check_features(config)[:1]
    engine.advance(features.to(state.head.ssm.device), state).logits.cpu()


def cache_folder() -> Path:
    """SURGICALMAMBA_CACHE, or our folder where the system keeps caches."""
    if named := os.environ.get("SURGICALMAMBA_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "surgicalmamba"


def setting_key(model_fingerprint: str, device: str, threads: int) -> str:
    """A hash of what a measurement depends on: the model, the machine, the versions, the threads."""
    machine = (platform.node(), platform.machine(), platform.processor(), str(os.cpu_count()))
    return _hash(model_fingerprint, device, str(threads), *machine)


def export_key(model_fingerprint: str) -> str:
    """A hash of what exported graphs depend on."""
    return _hash(model_fingerprint)


def _hash(*parts: str) -> str:
    """Of the parts and the versions of everything involved."""
    versions = [f"surgicalmamba {__version__}", f"python {platform.python_version()}"]
    for name in ("torch", "onnx", "onnxruntime", "onnxscript"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    return hashlib.blake2b("\n".join([*parts, *versions]).encode(), digest_size=16).hexdigest()


def read_choice(key: str, allowed: tuple[str, ...]) -> str | None:
    """The engine cached under this key; None when nothing usable is there."""
    try:
        cached = json.loads((cache_folder() / f"engine-{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    engine = cached.get("engine") if isinstance(cached, dict) else None
    return engine if engine in allowed else None


def write_choice(key: str, engine: str, frame_ms: Mapping[str, float]) -> None:
    """Cache a choice with its figures. A cache that cannot be written only costs time at the next start."""
    file = cache_folder() / f"engine-{key}.json"
    with suppress(DataError):
        make_folder(file.parent)
        write_atomic(file, json.dumps({"engine": engine, "frame_ms": dict(frame_ms)}, indent=2) + "\n")
