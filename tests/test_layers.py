"""A module imports only from rooms below its own, and codecs never import each other."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gcodec"
# The rooms from the bottom to the top. A room is a module or a package with all its modules;
# `entropy.context` is a room of its own inside `entropy`.
LAYERS = [
    {"errors"},
    {"limits", "runtime"},
    {"kernels"},
    {"wire"},
    {"arrays", "payload"},
    {"entropy"},
    {"entropy.context"},
    {"fields"},
    {"codec"},
    {"codecs"},
    {"frame", "policy"},
    {"tensorfiles"},
    {"advisor", "feedback"},
    {"api"},
    {"patch"},
    {"analysis", "interop", "training"},
    {"torch", "jax", "mpi", "numcodecs", "zarr", "flower", "nvflare"},
    {"cli"},
]
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
FRAMEWORKS = {"torch", "jax", "cupy", "tensorflow", "mlx", "matplotlib"}
FRAMEWORKS |= {"zarr", "numcodecs", "mpi4py", "flwr", "nvflare"}
# The one module or package that may import each of them.
ADAPTERS = {"cli.render.figures": "matplotlib", "torch": "torch", "jax": "jax"}
ADAPTERS |= {"mpi": "mpi4py", "numcodecs": "numcodecs", "zarr": "zarr"}
ADAPTERS |= {"flower": "flwr", "nvflare": "nvflare"}

MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name not in ("__main__.py", "__init__.py")
)


@functools.cache
def import_nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


@functools.cache
def imported(path: Path) -> list[str]:
    names = []
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names.append(node.module)
            if node.module in ("gcodec", "gcodec.entropy", "gcodec.codecs"):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def existing(module: str, name: str) -> bool:
    """Return whether a module has this name, or a module of this name inside it."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("folder", ["bench", "fuzz", "tools", "examples"])
def test_names_imported_from_the_package_exist(folder: str) -> None:
    """Scripts that no test runs would break unnoticed when a module moves."""
    for path in sorted((PACKAGE.parent / folder).rglob("*.py")):
        for node in import_nodes(path):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            top, _, rest = node.module.partition(".")
            if top == "gcodec" and rest.partition(".")[0] not in ADAPTERS:
                for alias in node.names:
                    where = f"{path.name}:{node.lineno}: {node.module}.{alias.name}"
                    assert existing(node.module, alias.name), where


def room(parts: tuple[str, ...]) -> str:
    """Return the room of a module, given by its names below the package."""
    return "entropy.context" if parts[:2] == ("entropy", "context") else parts[0]


def test_imports_go_down_only() -> None:
    for path in MODULES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        own = room(parts)
        assert own in ROW, f"{own} belongs to no layer"
        for name in imported(path):
            if not name.startswith("gcodec."):
                continue
            other = room(tuple(name.split(".")[1:]))
            if other not in ROW:  # a public name of the top package: only the command may use it
                assert own == "cli", f"{own} imports {name} through the top"
                continue
            assert own == other or ROW[other] < ROW[own], f"{'.'.join(parts)} imports {name}"


def test_codecs_do_not_import_each_other() -> None:
    for path in sorted((PACKAGE / "codecs").rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("codecs", "__init__"):
            continue
        for name in imported(path):
            if name.startswith("gcodec.codecs."):
                assert name.split(".")[2] == parts[1], f"{'.'.join(parts)} imports {name}"


def test_the_modules_of_a_codec_are_its_own() -> None:
    """Others import what the package of a codec lists in ``__all__``."""
    codecs = PACKAGE / "codecs"
    for path in MODULES:
        if path.is_relative_to(codecs):
            continue
        for node in import_nodes(path):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("gcodec.codecs."):
                assert module.count(".") == 2, f"{path} imports {module}"
                if (codecs / module.split(".")[2]).is_dir():
                    listed = importlib.import_module(module).__all__
                    assert {alias.name for alias in node.names} <= set(listed), f"{path}: {module}"


def test_only_adapters_import_frameworks() -> None:
    for path in MODULES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        own = {ADAPTERS.get(parts[0]), ADAPTERS.get(".".join(parts))}
        assert not (FRAMEWORKS - own) & {name.split(".")[0] for name in imported(path)}, path


def test_only_the_runtime_knows_numba() -> None:
    compiling = "jit.py", "compiler.py", "lowering.py", "kernel_cache.py"
    own = *compiling, "memory.py", "lanes.py", "words.py"
    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] not in ("runtime", "kernels"):
            names = {name.split(".")[0] for name in imported(path)}
            assert not {"numba", "llvmlite"} & names, path
        if path.name not in own:
            assert "numba" not in {name.split(".")[0] for name in imported(path)}, path
