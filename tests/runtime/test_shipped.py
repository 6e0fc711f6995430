"""Kernels of a wheel, and the levels of processors that they are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gcodec
from fuzz import kernel_cache as damaging
from gcodec.runtime import jit, kernel_cache, processor, shipped
from gcodec.runtime.jit import Kernel

ROOT = Path(__file__).parents[2]
PROGRAM = """
import hashlib, sys
import numpy as np, gcodec
x = np.random.default_rng(3).laplace(size=(48, 100)).astype(np.float32)
digest = hashlib.blake2b()
for spec in sys.argv[1:]:
    frame = gcodec.encode(x, spec)
    digest.update(frame + gcodec.decode(frame).tobytes())
print(digest.hexdigest())
"""
# One codec for each kind of loop: sums, roundings, integers, and rANS with vectors. `.ci/run` uses
# all golden files at each level.
SPECS = ("sign", "minmax:bits=3", "qsgd:code=rans", "terngrad:pack=base3")


@pytest.fixture
def quick() -> list[Kernel]:
    """Return a few kernels that have not been loaded."""
    return [
        Kernel(kernel.function, kernel.signature, kernel.variant)
        for kernel in jit.kernels()
        if kernel.name in damaging.ARGUMENTS
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: list[Kernel]) -> Iterator[Path]:
    """Return the folder of an archive with a few kernels for this processor's best level."""
    (level, *_) = processor.levels() or [pytest.skip("no kernels are shipped for this processor")]
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GCODEC_TARGET", level)
    codes = [(k.name, k.signature, kernel_cache.compiled(k).packed()) for k in quick]
    monkeypatch.delenv("GCODEC_TARGET")
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    shipped.write(shipped.archive_of(level), iter(codes), processor.of_level(level))
    shipped._archive.cache_clear()
    yield tmp_path
    shipped._archive.cache_clear()


def run(kernels: list[Kernel]) -> list[str]:
    """Run kernels; return the names of those that had to be compiled."""
    compiled: list[str] = []
    with kernel_cache.watched(compiled.append):
        for kernel in kernels:
            arguments = damaging.ARGUMENTS[kernel.name]()
            kernel(*arguments)
            assert np.array_equal(arguments[-1], damaging.RESULTS[kernel.name])
    return compiled


def test_shipped_kernels_are_not_compiled(folder: Path, quick: list[Kernel]) -> None:
    assert run(quick) == []
    stored = [path for path in (folder / "empty").rglob("*") if path.is_file()]
    assert all(path.name.startswith("entry.") for path in stored)  # which the archive lacks


def test_the_cache_precedes_the_wheel(folder: Path, quick: list[Kernel]) -> None:
    compiled: list[str] = []
    with kernel_cache.watched(compiled.append):
        native = kernel_cache.compiled(quick[0])
    assert compiled == [quick[0].name]
    assert kernel_cache.code_of(quick[0]) == native


def test_bounds_checks_are_compiled(
    folder: Path, quick: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_CHECKED", "1")
    assert run(quick[:1]) == [quick[0].name]


def test_archives_of_other_sources_are_ignored(folder: Path, quick: list[Kernel]) -> None:
    (path,) = folder.glob("*.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = bytes(32)
    shipped._archive.cache_clear()
    assert run(quick) == [kernel.name for kernel in quick]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not an archive"])
def test_damaged_archives_are_ignored(folder: Path, quick: list[Kernel], damage: str) -> None:
    (path,) = folder.glob("*.zip")
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        for at in range(200, len(data) // 2, 7):
            data[at] ^= 16
    else:
        data[:] = b"nothing"
    path.write_bytes(data)
    shipped._archive.cache_clear()
    assert set(run(quick)) <= {kernel.name for kernel in quick}


def test_only_levels_of_the_host_are_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_TARGET", "z80")
    with pytest.raises(gcodec.ParameterError, match=r"GCODEC_TARGET.*'z80'.*native"):
        processor.target()
    monkeypatch.setenv("GCODEC_TARGET", "")
    assert processor.target() == processor.host()
    for level in processor.levels():
        monkeypatch.setenv("GCODEC_TARGET", level)
        assert processor.target().level == level
        assert all(map(processor.host().has, processor._LEVELS[level][2]))


def digest(target: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GCODEC_TARGET": target}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *SPECS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_all_levels_encode_to_the_same_bytes() -> None:
    native = digest("native")
    for level in processor.levels():
        assert digest(level) == native, level
