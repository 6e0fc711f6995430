"""Compilation of all kernels ahead of time: each variant is listed, and compiled once."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gcodec.cli.main import cli
from gcodec.runtime import jit, kernel_cache, warmup
from gcodec.runtime.jit import Kernel

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "gcodec" / "kernels").rglob("*.py"))
QUICK = ("arithmetic._add_scaled", "bitmap._set_bits", "escapes._find_from", "philox._words")


def quick_kernels() -> list[Kernel]:
    """Return kernels that compile quickly, and that this process has not compiled."""
    quick = [kernel for kernel in jit.kernels() if kernel.name in QUICK]
    assert len(quick) == len(QUICK)
    return quick


def decorator(node: ast.expr) -> str:
    call = node.func if isinstance(node, ast.Call) else node
    return call.id if isinstance(call, ast.Name) else getattr(call, "attr", "")


def makers(source: Path) -> list[ast.FunctionDef]:
    """Return the functions that contain a kernel."""
    functions = []
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            inner = (n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node)
            if any("kernel" in map(decorator, one.decorator_list) for one in inner):
                functions.append(node)
    return functions


def test_makers_of_kernels_are_factories() -> None:
    """A maker is a factory, or its module assigns the kernel to a name."""
    names = {kernel.name.partition(" ")[0] for kernel in jit.kernels()}
    for source in SOURCES:
        for function in makers(source):
            is_factory = "factory" in map(decorator, function.decorator_list)
            prefix = f"{source.stem}.{function.name}."
            assert is_factory or any(name.startswith(prefix) for name in names), prefix
            assert any(name.startswith(prefix) for name in names), prefix


def test_declared_kernels_are_listed_once() -> None:
    kernels = jit.kernels()
    names = [kernel.name for kernel in kernels]
    assert len(set(names)) == len(names)
    declared = set()
    for source in SOURCES:
        for node in ast.parse(source.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "kernel" in map(
                decorator, node.decorator_list
            ):
                declared.add(f"{source.stem}.{node.name}")
    assert declared and declared <= {name.partition(" ")[0] for name in names}


def kernel_files(build: Path) -> list[Path]:
    """Return the files in the cache, without that of the entry, which all kernels share."""
    return sorted(path for path in build.iterdir() if not path.name.startswith("entry."))


def program(names: tuple[str, ...], *calls: list[str]) -> str:
    return (
        "import sys\n"
        "from gcodec.cli.main import main\n"
        "from gcodec.runtime import jit\n"
        f"kernels = [k for k in jit.kernels() if k.name in {names!r}]\n"
        "jit.kernels = lambda: kernels\n"
        f"for args in {calls!r}:\n"
        "    main(args, standalone_mode=False)\n"
    )


def processed(folder: Path, names: tuple[str, ...], *calls: list[str]) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program(names, *calls)],
        env={**os.environ, "GCODEC_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    decoder, text, documents = json.JSONDecoder(), done.stdout, []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        documents.append(document)
        text = text.lstrip()[end:]
    return documents


def test_cached_kernels_are_not_compiled_again(tmp_path: Path) -> None:
    call = ["warmup", "-j", "1", "--json"]
    first, second = processed(tmp_path, QUICK, call, call)
    assert (first["kernels"], first["compiled"], first["not_kept"]) == (4, 4, [])
    assert (second["kernels"], second["compiled"]) == (4, 0)
    (build,) = tmp_path.iterdir()
    assert str(build) == first["directory"]
    files = kernel_files(build)
    assert len(files) == 4
    # Only missing and damaged kernels are compiled again.
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"?")
    files[1].unlink()
    kept = [path.stat().st_mtime_ns for path in files[2:]]
    (third,) = processed(tmp_path, QUICK, call)
    assert (third["compiled"], third["not_kept"]) == (2, [])
    assert [path.stat().st_mtime_ns for path in files[2:]] == kept


def test_several_processes_compile_each_kernel_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    kernels = quick_kernels()
    assert kernel_cache.missing(kernels) == kernels
    assert sum(warmup.compile_kernels(kernels, 2)) == len(kernels)
    assert not kernel_cache.missing(kernels)
    (build,) = tmp_path.iterdir()
    assert [path.suffix for path in kernel_files(build)] == [".kernel"] * 4


def test_parts_contain_each_kernel_once() -> None:
    kernels = jit.kernels()
    parts = warmup.partition(kernels)
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted(kernel.name for kernel in kernels)
    assert all(len({name.partition(" ")[0] for name in part}) == 1 for part in parts)


def test_warmup_fails_without_a_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "file"))
    result = CliRunner().invoke(cli, ["warmup"])
    assert result.exit_code == 3
    assert f"{tmp_path / 'file'} is not a directory." in result.stderr
    assert "Set GCODEC_CACHE_DIR to a directory of your own." in result.stderr


def test_warmup_fails_with_a_disabled_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    result = CliRunner().invoke(cli, ["warmup"])
    assert result.exit_code == 2
    assert "unset the environment variable NUMBA_DISABLE_JIT" in result.stderr


def test_warmup_reports_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    kernels = quick_kernels()
    monkeypatch.setattr(jit, "kernels", lambda: kernels)
    monkeypatch.setattr(warmup, "_compile", len)  # caches nothing
    result = CliRunner().invoke(cli, ["warmup", "-j", "1"])
    assert result.exit_code == 1
    assert "4 kernels could not be stored" in result.stderr


def die(names: list[str]) -> int:
    os._exit(9)


def test_warmup_reports_a_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    kernels = quick_kernels()
    monkeypatch.setattr(jit, "kernels", lambda: kernels)
    monkeypatch.setattr(warmup, "_compile", die)
    result = CliRunner().invoke(cli, ["warmup", "-j", "2"])
    assert result.exit_code == 1
    assert "a compiling process was killed" in result.stderr


def test_warmup_compiles_the_kernels_of_codecs(tmp_path: Path) -> None:
    call = ["warmup", "-j", "1", "--json", "sign", "minmax:bits=8"]
    names = tuple(kernel.name for kernel in jit.kernels())
    first, second = processed(tmp_path, names, call, call)
    assert first["compiled"] == first["kernels"] and first["not_kept"] == []
    assert (second["kernels"], second["compiled"]) == (first["kernels"], 0)
    program = (
        "import sys, numpy as np, gcodec\n"
        "for spec in ('sign', 'minmax:bits=8'):\n"
        "    gcodec.decode(gcodec.encode(np.ones(9, np.float32), spec))\n"
        "assert 'numba' not in sys.modules\n"
        "assert gcodec.warmup('sign') == 0\n"
    )
    environment = {**os.environ, "GCODEC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_the_first_compilation_is_announced(tmp_path: Path) -> None:
    example = ROOT / "examples" / "resnet8_digits_step0300.safetensors"
    call = ["inspect", "--codec", "sign", str(example)]
    runs = [
        subprocess.run(
            [sys.executable, "-c", "from gcodec.cli.main import main; main()", *call],
            env={**os.environ, "GCODEC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    assert runs[0].stderr.count("gcodec: compiling kernels, once") == 1
    assert "(sign needs about 3)" in runs[0].stderr
    assert "compiling" not in runs[1].stderr


def test_announcement_says_that_kernels_cannot_be_stored(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    example = ROOT / "examples" / "resnet8_digits_step0300.safetensors"
    call = ["inspect", "--codec", "sign", str(example)]
    run = subprocess.run(
        [sys.executable, "-m", "gcodec", *call],
        env={**os.environ, "GCODEC_CACHE_DIR": str(occupied), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in run.stderr.splitlines() if "compiling" in line)
    assert line == (
        "gcodec: compiling kernels (sign needs about 3), in each run, because they cannot be "
        f"stored: {occupied} is not a directory. Set GCODEC_CACHE_DIR to a directory of your own."
    )
