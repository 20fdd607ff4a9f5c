"""A page as a reader would work through it: every block in order, in a folder of its own.

Commands of this package run in this process, to save a second of imports each. What would take minutes is
made smaller by SHORTER; `study`, and `bench` without --quick, have tests of their own and are only parsed.
`serve` starts a server that runs until the page ends."""

import doctest
import json
import math
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from typer.testing import CliRunner

from docs.blocks import Block
from docs.parsing import check_command, words_of
from surgicalmamba.cli.main import app
from surgicalmamba.engines import select as engines

PORT = "8571"
"""The port the documents name; another one is taken in its place, so that two pages can have a server at
once."""

SHORTER = {
    ("prepare", "synthetic"): ["--videos", "3", "--fps", "1", "--seed", "3159"],
    ("prepare", "custom"): ["--workers", "1"],
    ("prepare", "features"): ["--workers", "1"],
    ("train",): ["epochs=1", "data.n_lanes=1", "data.workers=1"],
}
"""Put behind the command; the last value of an option counts. Seed 3159 has three operations of little more
than two minutes each."""


@contextmanager
def eager_is_fast_enough() -> Iterator[None]:
    """`auto` measures, and on a busy machine also exports the model to ONNX, which takes a minute. Here it
    stays with eager."""
    before = engines.FAST_ENOUGH_MS
    engines.FAST_ENOUGH_MS = math.inf
    try:
        yield
    finally:
        engines.FAST_ENOUGH_MS = before


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder for a while. (`contextlib.chdir` came with Python 3.11.)"""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PageRun:
    """The folder, the names and the server that the blocks of one page share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__page__"}
        self.port = str(free_port())
        self._server: subprocess.Popen[str] | None = None
        self._settings = ExitStack()

    def __enter__(self) -> "PageRun":
        self._settings.enter_context(eager_is_fast_enough())
        return self

    def __exit__(self, *_: object) -> None:
        self._settings.close()
        self._stop_server()

    def block(self, block: Block) -> None:
        """Run or check one block."""
        if block.file is not None:
            file = self.folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text.replace(PORT, self.port), encoding="utf-8")
        if block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "sh":
            for line in block.commands:
                check_command(line)
                if block.kind is None:
                    self.command(line.replace(PORT, self.port), block.place)
        elif block.language == "python":
            self._python(block)

    def _python(self, block: Block) -> None:
        text = block.text.replace(PORT, self.port)
        if text.lstrip().startswith(">>>"):
            with inside(self.folder):
                self._dialogue(block, text)
            return
        code = compile("\n" * (block.line - 1) + text, block.place, "exec")
        if block.kind is None:
            with inside(self.folder):
                exec(code, self.names)

    def command(self, line: str, place: str) -> None:
        """Run one command line."""
        words = words_of(line)
        if any(sign in words for sign in ("|", ">", "&&")) or words[0] not in (
            "surgicalmamba",
            "pip",
            "make",
        ):
            self._shell(line, place)
        elif words[0] == "surgicalmamba":
            self._own(words[1:], place)

    def _own(self, words: list[str], place: str) -> None:
        if words[0] == "study" or (words[0] == "bench" and "--quick" not in words):
            return
        if words[0] == "serve" and "--new-token" not in words:
            self._start_server(words, place)
            return
        if words[0] == "train" and not {"--resume", "--settings"} & set(words):
            shutil.rmtree(self.folder / "runs", ignore_errors=True)  # a page that trains starts from nothing
        if not {"--resume", "--settings"} & set(words):
            words = [
                *words,
                *(
                    word
                    for verb, more in SHORTER.items()
                    if tuple(words[: len(verb)]) == verb
                    for word in more
                ),
            ]
        with inside(self.folder):
            result = CliRunner().invoke(app, words)
        if result.exit_code != 0:
            said = f"{place}: surgicalmamba {' '.join(words)} ended with {result.exit_code}:\n{result.output}"
            raise AssertionError(said) from result.exception

    def _shell(self, line: str, place: str) -> None:
        beside = Path(sys.executable).parent
        assert (beside / "surgicalmamba").exists(), (
            "the surgicalmamba command is not installed beside this python"
        )
        environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
        shell = ["bash", "-euo", "pipefail", "-c", line]
        result = subprocess.run(
            shell, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{place}: {line}\n{result.stderr}"

    def _dialogue(self, block: Block, text: str) -> None:
        example = doctest.DocTestParser().get_doctest(
            text, self.names, block.place, str(block.page), block.line
        )
        said: list[str] = []
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(example, out=said.append, clear_globs=False)
        self.names.update(example.globs)
        assert runner.failures == 0, "".join(said)

    def _start_server(self, words: list[str], place: str) -> None:
        self._stop_server()
        command = [
            sys.executable,
            "-m",
            "surgicalmamba",
            *words,
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
            "--json",
        ]
        self._server = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line and self.port in json.loads(line)["url"], (
            f"{place}: the server did not start: {' '.join(words)}"
        )

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.terminate()
            assert self._server.wait(60) == 0, "the server ended with an error"
            assert self._server.stdout is not None
            self._server.stdout.close()
            self._server = None
