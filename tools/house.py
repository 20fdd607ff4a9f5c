"""Measure the project: modules and lines per folder, files that commands run, files that changes touch.

    python tools/house.py                      the working tree
    python tools/house.py --before 069646c     beside a git revision
    python tools/house.py --sizes              only modules and lines, in a second
    python tools/house.py --files              also list the files that each command runs

Prints Markdown for CONTRIBUTING.md. Run it in the environment of `make test`."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

ROOT = Path(__file__).parents[1]
TOUCHED = Path(__file__).with_name("touched.py")
PRODUCT, LAB = "src/surgicalmamba", "lab/src/surgicalmamba_lab"
NETWORK = ("surgicalmamba/core/", "surgicalmamba/model/")
"""The files of these folders that run for each frame are the network."""

FRAMES = (70, 140)
"""Lengths of the two recordings. Both contain the end of a chunk of 64 frames, the longer one an end more."""


@dataclass(frozen=True)
class Change:
    """A typical change and the source files that it touches; tests and documents come on top.

    A new dataset, engine or peer is counted by the files that an existing one consists of."""

    name: str
    goal: int
    """At most so many files."""
    files: tuple[str, ...]


def _product(*names: str) -> tuple[str, ...]:
    return tuple(f"{PRODUCT}/{name}" for name in names)


CHANGES = (
    Change(
        "a dataset",
        2,
        _product(
            "data/adapters/cholec80.py",
            "data/adapters/__init__.py",
        ),
    ),
    Change("a metric", 2, _product("eval/frame.py", "eval/protocols.py")),
    Change(
        "the rotation's parametrisation",
        5,
        _product("core/rotation.py", "model/surgical_mamba.py", "model/release.py"),
    ),
    Change("an engine", 2, _product("engines/onnx.py", "engines/select.py")),
    Change("a peer", 2, _product("peers/tecno.py", "model/registry.py")),
    Change(
        "a field of the estimate",
        3,
        _product(
            "live/estimate.py",
            "live/track.py",
            "server/api.py",
        ),
    ),
    Change("an option of `stream`", 2, _product("cli/stream.py", "live/app.py")),
    Change("the checkpoint format", 1, _product("model/checkpoint.py")),
    Change("a loss", 3, _product("train/losses.py", "train/config.py")),
    Change("a backbone", 2, _product("model/backbone.py", "model/recognizer.py")),
    Change(
        "a study",
        2,
        tuple(
            f"{LAB}/{name}"
            for name in (
                "studies/ablation.py",
                "cli/study.py",
            )
        ),
    ),
)


@dataclass(frozen=True)
class Size:
    """Python modules and their lines, blank ones and comments included."""

    modules: int = 0
    lines: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.modules + other.modules, self.lines + other.lines)


@dataclass(frozen=True)
class Run:
    """What a command runs: modules that it imports, files of which a function runs, and those of each frame.

    A file is one of each frame if its functions are called more often for a longer recording."""

    imported: frozenset[str]
    files: frozenset[str]
    of_each_frame: frozenset[str] = frozenset()


@dataclass(frozen=True)
class House:
    """All measurements of one source tree."""

    sizes: dict[str, Size]
    """By folder, in the order in which they are printed; without totals."""
    runs: dict[str, Run]
    help_s: float | None


def measure_sizes(root: Path) -> dict[str, Size]:
    """Modules and lines per folder of the product and of the lab. Modules outside folders are one entry."""
    sizes: dict[str, Size] = {}
    for package in (PRODUCT, LAB):
        for module in sorted((root / package).rglob("*.py")):
            first, *rest = module.relative_to(root / package).parts
            folder = f"{package}/{first}/" if rest else f"{package}/"
            lines = len(module.read_text(encoding="utf-8").splitlines())
            sizes[folder] = sizes.get(folder, Size()) + Size(1, lines)
    return sizes


def total(sizes: dict[str, Size], package: str) -> Size:
    """Of one package."""
    return sum((size for folder, size in sizes.items() if folder.startswith(f"{package}/")), Size())


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The sources of a git revision in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive.tar"
        subprocess.run(["git", "archive", "--output", str(archive), revision], cwd=ROOT, check=True)
        tree = Path(folder) / "tree"
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="data")
        yield tree


class Workshop:
    """Runs commands of a source tree in a scratch folder, and records the files that they run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        sources = os.pathsep.join(str(root / part) for part in ("src", "lab/src"))
        self.environment = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
        for length in FRAMES:
            write_recording(folder / f"{length}.mp4", length)

    def command(self, *words: str) -> None:
        """A command of surgicalmamba that must succeed; nothing is recorded."""
        self._run([sys.executable, "-m", "surgicalmamba", *words])

    def recorded(self, *words: str) -> Run:
        """A command of surgicalmamba, with the files that it ran."""
        self._run([sys.executable, str(TOUCHED), "touched.json", *words])
        calls, imported = self._read("touched.json")
        return Run(imported, frozenset(calls))

    def train(self) -> Run:
        """One epoch on ten recordings of a few seconds."""
        videos = self.folder / "videos"
        videos.mkdir()
        (videos / "phases.yaml").write_text("phases: [Access, Dissection, Closure]\n", encoding="utf-8")
        for number in range(10):
            write_recording(videos / f"op{number}.mp4", 12)
            rows = ["start,end,phase", "0,4,Access", "4,8,Dissection", "8,12,Closure"]
            (videos / f"op{number}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        self.command("prepare", "custom", "--source", "videos", "--out", "prepared", "--workers", "1")
        settings = ["data.path=prepared", "epochs=1", "data.n_lanes=1", "data.workers=1"]
        return self.recorded("train", "--config", str(self.root / "configs/tiny.yaml"), *settings)

    def stream(self) -> Run:
        """A file through the demo model."""
        counts = []
        for length in FRAMES:
            options = ["--engine", "eager", "--out", f"{length}.jsonl"]
            self._run([sys.executable, str(TOUCHED), "touched.json", "stream", f"{length}.mp4", *options])
            counts.append(self._read("touched.json"))
        return _compare(counts)

    def serve(self) -> Run:
        """A server with the demo model, to which a client sends a file."""
        counts = []
        for length in FRAMES:
            words = ["serve", "--port", "0", "--data", f"record-{length}", "--json"]
            command = [sys.executable, str(TOUCHED), "touched.json", *words]
            with subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as server:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                self.command("stream", f"{length}.mp4", "--server", url, "--out", f"served-{length}.csv")
                server.send_signal(signal.SIGTERM)
                server.wait(60)
            counts.append(self._read("touched.json"))
        return _compare(counts)

    def help_s(self, n_runs: int = 5) -> float:
        """Seconds until `surgicalmamba --help` has answered, the median."""
        times = []
        for _ in range(n_runs):
            start = time.perf_counter()
            self.command("--help")
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _run(self, command: Sequence[str]) -> None:
        result = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} failed in {self.root}:\n{result.stderr}")

    def _read(self, name: str) -> tuple[dict[str, int], frozenset[str]]:
        found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        (self.folder / name).unlink()
        return found["calls"], frozenset(found["imported"])


def _compare(counts: Sequence[tuple[dict[str, int], frozenset[str]]]) -> Run:
    """One run from those of a shorter and of a longer recording."""
    (short, _), (long, imported) = counts
    growing = (file for file, calls in long.items() if calls > short.get(file, 0))
    return Run(imported, frozenset(long), frozenset(growing))


def write_recording(path: Path, n_frames: int) -> None:
    """A video of one frame per second: a square that moves over a background that changes."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=1)
        stream.width = stream.height = 96
        stream.pix_fmt = "yuv420p"
        for index in range(n_frames):
            rgb = np.zeros((96, 96, 3), np.uint8)
            rgb[8:88, 8:88] = rng.integers(40, 220, 3)
            left = 8 + 3 * index % 60
            rgb[20:40, left : left + 20] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, "rgb24")))
        container.mux(stream.encode())


def measure(root: Path, sizes_only: bool) -> House:
    """Everything about a source tree."""
    sizes = measure_sizes(root)
    if sizes_only:
        return House(sizes, {}, None)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(root, Path(folder))
        runs = {"train": shop.train(), "stream": shop.stream(), "serve": shop.serve()}
        return House(sizes, runs, shop.help_s())


def network_of(run: Run) -> frozenset[str]:
    """The network's files, from a command that sends frames through it."""
    return frozenset(file for file in run.of_each_frame if file.startswith(NETWORK))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def sizes_table(houses: dict[str, House]) -> str:
    """Modules and lines per folder; a column for each tree."""
    named = list(houses.values())
    folders = {folder: None for house in reversed(named) for folder in house.sizes}
    rows = []
    for package in (PRODUCT, LAB):
        inside = [folder for folder in folders if folder.startswith(f"{package}/")]
        for folder in inside:
            short = folder.removeprefix(f"{package}/") or "outside folders"
            rows.append((short, *_size_cells(house.sizes.get(folder, Size()) for house in named)))
        totals = (total(house.sizes, package) for house in named)
        rows.append((f"**{package}**", *(f"**{cell}**" for cell in _size_cells(totals))))
    columns = [f"{unit} {name}".strip() for unit in ("modules", "lines") for name in houses]
    return table(["Folder", *columns], rows)


def _size_cells(sizes: Iterable[Size]) -> list[str]:
    found = list(sizes)
    return [f"{size.modules:,}" for size in found] + [f"{size.lines:,}" for size in found]


def runs_table(houses: dict[str, House]) -> str:
    """Files by command; a column for each tree."""
    rows = []
    for name in ("train", "stream", "serve"):
        runs = [house.runs[name] for house in houses.values()]
        rows.append((f"`{name}`: files that run", *(str(len(run.files)) for run in runs)))
        if any(run.of_each_frame for run in runs):
            rows.append((f"`{name}`: of them for each frame", *(str(len(run.of_each_frame)) for run in runs)))
        rows.append((f"`{name}`: modules imported", *(str(len(run.imported)) for run in runs)))
    streams = [house.runs["stream"] for house in houses.values()]
    networks = (str(len(network_of(run))) for run in streams)
    rows.append(("the network: files of `core` and `model` for each frame", *networks))
    rows.append(("`surgicalmamba --help`, seconds", *(f"{house.help_s:.2f}" for house in houses.values())))
    return table(["", *(name or "now" for name in houses)], rows)


def changes_table(root: Path) -> str:
    """Source files to change, by change."""
    rows = []
    for change in CHANGES:
        names = (
            f"`{_short(file)}`{'' if (root / file).is_file() else ' (missing)'}" for file in change.files
        )
        rows.append((change.name, str(len(change.files)), str(change.goal), ", ".join(names)))
    lines = table(["Change", "files", "at most", "which"], rows).splitlines()
    lines[1] = "| --- | ---: | ---: | --- |"
    return "\n".join(lines)


def _short(file: str) -> str:
    return file.removeprefix(f"{PRODUCT}/")


def missing_files(root: Path) -> list[str]:
    """Files named in CHANGES that are not there."""
    return sorted({file for change in CHANGES for file in change.files if not (root / file).is_file()})


def files_list(house: House) -> str:
    """The files that each command runs; those of each frame are marked with a star."""
    parts = []
    for name, run in house.runs.items():
        lines = [f"- `{file}`{' *' if file in run.of_each_frame else ''}" for file in sorted(run.files)]
        parts.append("\n".join([f"`{name}`:", "", *lines]))
    return "\n\n".join(parts)


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(
        description="Measure modules, lines, and files that commands run. Prints Markdown."
    )
    parser.add_argument("--before", metavar="REVISION", help="Put a git revision beside the working tree.")
    parser.add_argument("--sizes", action="store_true", help="Only modules and lines; run nothing.")
    parser.add_argument("--files", action="store_true", help="Also list the files that each command runs.")
    options = parser.parse_args()
    houses = {}
    if options.before is not None:
        with checkout(options.before) as tree:
            houses["before"] = measure(tree, options.sizes)
    houses["now" if houses else ""] = now = measure(ROOT, options.sizes)
    parts = [sizes_table(houses)]
    if not options.sizes:
        parts += [runs_table(houses), changes_table(ROOT)]
    if options.files:
        parts.append(files_list(now))
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
