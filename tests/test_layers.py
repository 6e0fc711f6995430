"""A module imports only from layers below its own, and codecs never each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gcodec"
# From the bottom to the top; a name stands for a module or for a whole package.
LAYERS = [
    {"errors"},
    {"scalars"},
    {"limits", "wire", "minifloats"},
    {"kernels"},
    {"cuda"},
    {"kinds", "seeds", "residuals", "large_bytes"},
    {"seek_layout"},
    {"params", "frameworks", "seek"},
    {"views"},
    {"arrays", "payload", "shares", "sampling"},
    {"gennorm", "codebooks", "low_rank"},
    {"entropy"},
    {"contexts"},
    {"aims", "step_search", "device_scales", "minifloat_plans", "level_plans", "rank_trials"},
    {
        *(
            "scalar_levels",
            "level_scales",
            "level_strings",
            "minifloat_strings",
            "minifloat_scales",
        ),
        *("index_strings", "sparse_values"),
    },
    {"step_guesses", "level_ways"},
    {"nearest_levels"},
    {
        "index_plans",
        "minifloat_choice",
        "level_choice",
        "fields",
        "trellis_levels",
        "random_levels",
        "placed_levels",
        "step_targets",
    },
    {"device_levels"},
    {"dct", "two_bit_forms"},
    {"taps", "two_bit_choice"},
    {"scalar_points"},
    {"hooks"},
    {"codec"},
    {"registry"},
    {"codecs"},
    {"tags", "policy", "header", "cost_estimates"},
    {"frame"},
    {"coding", "choice", "feedback", "advisor", "interop"},
    {"training"},
    {"gradients"},
    {"torch", "jax", "mpi", "numcodecs", "zarr"},
    {"cli"},
]
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}
# Whose modules may import each other.
PACKAGES = (
    *(
        "kernels",
        "cuda",
        "entropy",
        "contexts",
        "fields",
        "dct",
        "advisor",
        "gradients",
        "interop",
        "training",
    ),
    *("torch", "cli"),
)
FRAMEWORKS = {"torch", "jax", "cupy", "tensorflow", "mlx", "matplotlib"}
FRAMEWORKS |= {"zarr", "numcodecs", "mpi4py"}
# Who imports which of them: one adapter each.
ADAPTERS = {"vector_graphics": "matplotlib", "torch": "torch", "jax": "jax", "mpi": "mpi4py"}
ADAPTERS |= {"numcodecs": "numcodecs", "zarr": "zarr"}

MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name not in ("__main__.py", "__init__.py")
)


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            names.append(node.module)
            if node.module == "gcodec":
                names += [f"gcodec.{alias.name}" for alias in node.names]
    return names


def part(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    own = relative.parts[0].removesuffix(".py")
    assert own in ROW, f"{relative} belongs to no layer"
    for name in imported(path):
        if not name.startswith("gcodec."):
            continue
        other = part(name)
        if other not in ROW:  # a public name of the top package: only the command may use it
            assert own == "cli", f"{relative} imports {name} through the top"
            continue
        same = own == other and own in PACKAGES
        assert same or ROW[other] < ROW[own], f"{relative} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_imports_a_framework(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    own = {ADAPTERS.get(parts[0]), ADAPTERS.get(parts[-1]) if parts[0] == "gradients" else None}
    assert not (FRAMEWORKS - own) & {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_kernels_know_numba(path: Path) -> None:
    if path.parent.name != "kernels":
        assert not {"numba", "llvmlite"} & {name.split(".")[0] for name in imported(path)}
    if path.name not in ("jit.py", "memory.py", "lanes.py", "words.py"):
        assert "numba" not in {name.split(".")[0] for name in imported(path)}
