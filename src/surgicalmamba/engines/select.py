"""Open an engine by name. Every engine but eager proves on a few frames that it computes what eager computes, or is refused."""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import torch
from torch import Tensor

from surgicalmamba.engines.engine import EagerEngine, Engine
from surgicalmamba.engines.parity import answers, check_features, check_pictures, model_config, read_answers, require
from surgicalmamba.errors import EngineError, SessionError
from surgicalmamba.model.checkpoint import fingerprint
from surgicalmamba.model.recognizer import AnyRecognizer
from surgicalmamba.model.surgical_mamba import SurgicalMamba
from surgicalmamba.version import __version__

# What engines keep between two starts in the user's cache folder: the choice `auto` made, and exported graphs.
#
# Everything here can be deleted at any time. A file that cannot be read, or that says something unexpected, is ignored.


def cache_folder() -> Path:
    """SURGICALMAMBA_CACHE, or a folder of ours where the system keeps caches."""
    named = os.environ.get("SURGICALMAMBA_CACHE")
    if named:
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "surgicalmamba"


def setting_key(model_fingerprint: str, device: str, threads: int) -> str:
    """What a measurement depends on: the model, the machine, the versions, the threads."""
    parts = [model_fingerprint, device, str(threads), platform.node(), platform.machine(), platform.processor(), str(os.cpu_count())]
    return hashlib.blake2b("\n".join(parts + _versions()).encode(), digest_size=16).hexdigest()


def export_key(model_fingerprint: str) -> str:
    """What exported graphs depend on."""
    return hashlib.blake2b("\n".join([model_fingerprint, *_versions()]).encode(), digest_size=16).hexdigest()


def _versions() -> list[str]:
    found = [f"surgicalmamba {__version__}", f"python {platform.python_version()}"]
    for name in ("torch", "onnx", "onnxruntime", "onnxscript"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return found


def read_choice(key: str, allowed: tuple[str, ...]) -> str | None:
    """The engine chosen before under this key; None when nothing usable is kept."""
    try:
        kept = json.loads((cache_folder() / f"engine-{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    engine = kept.get("engine") if isinstance(kept, dict) else None
    return engine if engine in allowed else None


def write_choice(key: str, engine: str, frame_ms: Mapping[str, float]) -> None:
    """Keep a choice with the figures behind it. A cache that cannot be written costs time at the next start, nothing else."""
    file = cache_folder() / f"engine-{key}.json"
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"engine": engine, "frame_ms": dict(frame_ms)}, indent=2) + "\n", encoding="utf-8")
        os.replace(part, file)
    except OSError:
        part.unlink(missing_ok=True)


EngineName = Literal["auto", "eager", "compiled", "onnx", "onnx-int8"]
ENGINE_NAMES: tuple[str, ...] = get_args(EngineName)
MEASURED_FRAMES = 7
FAST_ENOUGH_MS = 40.0
"""A frame that eager computes in this time leaves nothing worth a minute of preparing another engine."""

Say = Callable[[str], None]


def open_engine(model: AnyRecognizer, name: str = "auto", *, threads: int | None = None, say: Say | None = None) -> Engine:
    """The engine of this name for a model. `auto` is eager where that is fast enough, else the fastest of those that agree with eager
    in float32, by a short measurement that is kept for the next start. `threads` is for ONNX Runtime; torch has its own setting. `say`
    hears what takes long."""
    if name not in ENGINE_NAMES:
        raise SessionError(f"unknown engine {name!r}; choose one of: {', '.join(ENGINE_NAMES)}.")
    say = say or (lambda _: None)
    eager = EagerEngine(model)
    network = model.in_pieces()
    if name == "eager" or (name == "auto" and network is None):
        return eager
    if network is None:
        raise SessionError(f"the {name} engine runs SurgicalMamba only; {model.name} runs on eager.")
    if name == "auto":
        return _fastest(network, eager, threads, say)
    return _checked(build(network, name, threads, say), eager)


def open_exported(folder: str | Path, *, threads: int | None = None) -> Engine:
    """The engine of an export folder, without the model's weights, checked against the answers eager gave when it was exported."""
    from surgicalmamba.engines.export import ANSWERS_FILE
    from surgicalmamba.engines.onnx import ExportedEngine

    engine = ExportedEngine(Path(folder), threads)
    require(engine, read_answers(Path(folder) / ANSWERS_FILE))
    return engine


def build(model: SurgicalMamba, name: str, threads: int | None, say: Say) -> Engine:
    """An engine that is not checked yet."""
    if name == "compiled":
        from surgicalmamba.engines.compiled import CompiledEngine

        say("compiling the model; this takes a minute or two")
        return CompiledEngine(model)
    return _from_kept_export(model, name == "onnx-int8", threads, say)


def _from_kept_export(model: SurgicalMamba, int8: bool, threads: int | None, say: Say) -> Engine:
    """The engine of an export in the cache folder; the export is made when it is not there or does not load."""
    from surgicalmamba.engines.export import export
    from surgicalmamba.engines.onnx import ExportedEngine, onnx_runtime

    onnx_runtime()
    base = cache_folder() / "exports" / export_key(fingerprint(model))
    exact, wanted = base / "fp32", base / ("int8" if int8 else "fp32")
    try:
        return ExportedEngine(wanted, threads)
    except EngineError:
        shutil.rmtree(wanted, ignore_errors=True)
    say("exporting the model to ONNX; this takes a minute or two and is kept for the next start")
    export(model, wanted, int8=int8, graphs_from=exact if int8 and exact.is_dir() else None)
    return ExportedEngine(wanted, threads)


def _checked(engine: Engine, eager: EagerEngine) -> Engine:
    require(engine, answers(eager))
    return engine


def candidates(device: torch.device) -> tuple[str, ...]:
    """What `auto` compares: engines in float32, leaving out those measured slower everywhere so far and slow to prepare."""
    return ("eager", "compiled") if device.type == "cuda" else ("eager", "onnx")


def _fastest(model: SurgicalMamba, eager: EagerEngine, threads: int | None, say: Say) -> Engine:
    device = model.head.classifier.weight.device
    names = candidates(device)
    key = setting_key(fingerprint(model), str(device), threads or torch.get_num_threads())
    kept = read_choice(key, names)
    if kept is not None:
        try:
            return eager if kept == "eager" else _checked(build(model, kept, threads, say), eager)
        except EngineError as error:
            say(f"the engine chosen before does not work any more, choosing anew: {error}")
    engines: dict[str, Engine] = {"eager": eager}
    if min(frame_times_ms(engines)["eager"]) < FAST_ENOUGH_MS:
        return eager
    for name in names[1:]:
        try:
            engines[name] = _checked(build(model, name, threads, say), eager)
        except EngineError as error:
            say(f"{name} is left out: {error}")
    frame_ms = {name: median(times) for name, times in frame_times_ms(engines).items()}
    best = min(frame_ms, key=lambda name: frame_ms[name])
    write_choice(key, best, frame_ms)
    say("engine: " + best + " (" + ", ".join(f"{name} {value:.1f} ms" for name, value in frame_ms.items()) + " per frame)")
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


def _one_frame(engine: Engine) -> Tensor:
    config = model_config(engine)
    features = check_features(config)[:1] if config.backbone is None else engine.encode(check_pictures(config))
    return engine.advance(features.to(engine.initial_state(1).head.ssm.device), engine.initial_state(1)).logits.cpu()

