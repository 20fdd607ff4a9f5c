"""Memory of an engine, measured in a process that holds nothing else; this file is also that process."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from surgicalmamba.devices import resident
from surgicalmamba.errors import EngineError


@dataclass(frozen=True)
class Memory:
    """Resident megabytes (10^6 bytes) of the whole process, Python and libraries included: at most, and once it runs."""

    peak_mb: float
    resident_mb: float


def measure_memory(engine: str, folder: Path, threads: int) -> Memory:
    """Open the engine in a fresh process and run a few frames over the end of a chunk."""
    command = [sys.executable, "-m", "surgicalmamba_lab.bench.stream_memory", engine, str(folder), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise EngineError(f"the {engine} engine failed in a process of its own: {result.stderr.strip().splitlines()[-1:]}")
    return Memory(**json.loads(result.stdout.splitlines()[-1]))


def _run_frames(name: str, folder: Path, threads: int) -> None:
    import torch

    from surgicalmamba.engines.engine import Engine
    from surgicalmamba.engines.parity import model_config

    torch.set_num_threads(threads)
    engine: Engine
    if name in ("eager", "compiled"):
        from surgicalmamba.engines.compiled import CompiledEngine
        from surgicalmamba.engines.engine import EagerEngine
        from surgicalmamba.model.checkpoint import load
        from surgicalmamba.model.surgical_mamba import SurgicalMamba

        model = load(folder)
        assert isinstance(model, SurgicalMamba)  # as the measurement saved it
        engine = EagerEngine(model) if name == "eager" else CompiledEngine(model)
    else:
        from surgicalmamba.engines.onnx import ExportedEngine

        engine = ExportedEngine(folder, threads)
    config = model_config(engine)
    assert config.backbone is not None
    size = config.backbone.image_size
    state = engine.initial_state(1).at([config.block.slow.chunk_len - 2])
    for _ in range(4):
        features = engine.encode(torch.zeros(1, size, size, 3, dtype=torch.uint8))
        state = engine.advance(features, state).state


if __name__ == "__main__":
    _run_frames(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    held = resident()
    print(json.dumps({"peak_mb": held.peak / 1e6, "resident_mb": held.now / 1e6}))
