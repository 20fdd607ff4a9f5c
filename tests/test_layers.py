"""Imports point down only. The layers are those of CONTRIBUTING.md; this test reads the source and fails
otherwise."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "surgicalmamba"

# What each part of the package may import from the package, besides its own folder. Lowest first.
MAY_IMPORT = {
    "version": set(),
    "errors": set(),
    "devices": {"errors"},
    "files": {"errors"},
    "config": {"errors", "files"},
    "core": {"errors"},
    "data": {"errors", "config", "files", "devices"},
    "eval": {"errors", "data", "files"},
    "report": {"errors", "eval", "data", "files", "version"},
    "model": {"errors", "config", "core", "files", "version"},
    "train": {"errors", "config", "core", "model", "data", "eval", "files", "devices", "version"},
    "engines": {"errors", "config", "core", "model", "data", "files", "devices", "version"},
    "live": {
        "errors",
        "config",
        "core",
        "model",
        "data",
        "eval",
        "report",
        "engines",
        "files",
        "devices",
        "version",
    },
    "peers": {
        "errors",
        "config",
        "core",
        "model",
        "train",
        "live",
    },  # losses and sessions; those build peers by name
    "insight": {
        "errors",
        "config",
        "core",
        "model",
        "data",
        "eval",
        "report",
        "train",
        "files",
        "devices",
        "version",
    },
    "server": {
        "errors",
        "config",
        "core",
        "model",
        "data",
        "eval",
        "engines",
        "live",
        "files",
        "devices",
        "version",
    },
    "doctor": {"core", "model", "version"},
    "demo": {"errors", "data", "eval", "report", "model", "live", "engines"},
}
# Libraries a part must not touch, because it has to import fast or run without them.
MUST_NOT_IMPORT = {
    "errors": {"torch", "numpy"},
    "config": {"torch", "numpy"},
    "core": {"yaml", "pydantic", "typer", "rich", "logging", "pathlib", "os", "time"},
    "eval": {"torch", "sklearn", "scipy"},
    "data": {"torchvision"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> list[tuple[str, int]]:
    """Every module a file imports, at any depth, as absolute dotted names with line numbers."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import; write the full name"
            base = node.module or ""
            names += [
                (f"{base}.{alias.name}" if base == "surgicalmamba" else base, node.lineno)
                for alias in node.names
            ]
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down_only(path):
    part = part_of(path)
    if part in {"cli", "__init__", "__main__"}:
        return
    assert part in MAY_IMPORT, (
        f"{path} is in no known layer: add {part!r} to MAY_IMPORT and to CONTRIBUTING.md"
    )
    for name, line in imported_names(path):
        if name.startswith("surgicalmamba."):
            target = name.split(".")[1]
            allowed = MAY_IMPORT[part] | {part}
            assert target in allowed, f"{path}:{line} imports {name}; {part} may import {sorted(allowed)}"
        top = name.split(".")[0]
        assert top not in MUST_NOT_IMPORT.get(part, set()), (
            f"{path}:{line} imports {name}, which {part} must not"
        )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_source_file_names_a_folder_of_somebodys_machine(path):
    text = path.read_text(encoding="utf-8")
    homes = [f"/{name}/" for name in ("home", "root", "Users")]
    for prefix in (*homes, "C:\\", str(PACKAGE.parents[1])):  # the last is this clone itself
        assert prefix not in text, f"{path} contains the absolute path prefix {prefix!r}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_unpickled(path):
    for name, line in imported_names(path):
        assert name.split(".")[0] not in {"pickle", "cPickle", "dill", "joblib", "shelve"}, (
            f"{path}:{line} imports {name}"
        )
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            called = f"{owner.id}.{node.func.attr}" if isinstance(owner, ast.Name) else ""
            keywords = {k.arg: k.value for k in node.keywords}
            if called == "torch.load":
                only = keywords.get("weights_only")
                assert isinstance(only, ast.Constant) and only.value is True, (
                    f"{path}:{node.lineno} torch.load without weights_only"
                )
            if called in {"np.load", "numpy.load"}:
                allow = keywords.get("allow_pickle")
                assert allow is None or (isinstance(allow, ast.Constant) and allow.value is False), (
                    f"{path}:{node.lineno}"
                )
