"""Run a command and record which files of the project it runs: how often functions of each file are called.

    python tools/touched.py stream.json stream synthetic/video01.mp4 --out video01.jsonl
    python tools/touched.py network.json -c "import surgicalmamba as sm; ..."

Generated methods, such as those of a dataclass, count for the file of their class. Calls during the import of
a module do not count. Other processes that the command starts are not recorded."""

import inspect
import json
import sys
import threading
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType

PACKAGES = ("surgicalmamba", "surgicalmamba_lab")


class Recorder:
    """A profile function that counts calls by file of the packages' folders, which end with a slash."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Called by the interpreter for every call and return."""
        if event != "call" or not _is_function(frame.f_code):
            return
        file = _file_of(frame)
        if file.startswith(self._folders) and not self._is_importing(frame):
            self.calls[file] += 1

    def _is_importing(self, frame: FrameType) -> bool:
        """Whether a module of the project is being imported further up in the stack."""
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_name == "<module>" and _file_of(caller).startswith(self._folders):
                return True
            caller = caller.f_back
        return False


def _is_function(code: CodeType) -> bool:
    """A function's code, not that of a module or of a class body."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _file_of(frame: FrameType) -> str:
    """The file of the code that runs; of a generated method, the file of its class."""
    file = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__", "")) if file == "<string>" else file


def project_folders() -> dict[str, str]:
    """Package -> its folder, for those that can be imported."""
    specs = {name: find_spec(name) for name in PACKAGES}
    return {name: str(Path(spec.origin).parent) for name, spec in specs.items() if spec and spec.origin}


def run(words: list[str]) -> None:
    """Run `-c CODE`, or a command of surgicalmamba."""
    if words[0] == "-c":
        exec(compile(words[1], "<code>", "exec"), {"__name__": "__main__"})
        return
    from surgicalmamba.cli.main import main

    sys.argv = ["surgicalmamba", *words]
    main()


def main() -> None:
    """Record a run. Writes {"imported": [module, ...], "calls": {file: calls}} with files by package."""
    out, *words = sys.argv[1:]
    folders = project_folders()
    recorder = Recorder(tuple(f"{folder}/" for folder in folders.values()))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        run(words)
    finally:
        sys.setprofile(None)
        parents = {str(Path(folder).parent) for folder in folders.values()}
        calls = {_relative(file, parents): count for file, count in sorted(recorder.calls.items())}
        imported = sorted(name for name in sys.modules if name.partition(".")[0] in PACKAGES)
        Path(out).write_text(json.dumps({"imported": imported, "calls": calls}, indent=1), encoding="utf-8")


def _relative(file: str, parents: set[str]) -> str:
    (parent,) = (parent for parent in parents if file.startswith(f"{parent}/"))
    return Path(file).relative_to(parent).as_posix()


if __name__ == "__main__":
    main()
