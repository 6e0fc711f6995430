"""Check a source distribution and wheels: ``python tools/check_distributions.py FOLDER [-j N]``.

FOLDER contains one source distribution and the wheel for this machine, as ``python -m build``
writes them. The script checks three things, outside of the sources:

- The unpacked source distribution builds a pure wheel with the same files as the other wheel,
  except for compiled kernels.
- On each CPython of this machine that gcodec supports, or on the oldest and the newest with
  ``--ends``, the wheel can be installed in a new virtual environment. The main command of the
  README and all golden files work, and a wheel with kernels compiles nothing. A pure wheel may
  compile kernels, for ``GCODEC_TARGET``, which stay in ``GCODEC_CACHE_DIR``.
- The pure wheel also works, and compiles its kernels, with the oldest releases of all
  dependencies, on the oldest CPython that gcodec supports if this machine has it.

The interpreters are ``python3.10`` and so on, next to the running one, on ``PATH`` and among the
versions of pyenv.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path

EXAMPLE = "examples/resnet8_digits_step0300.safetensors"
KERNELS = re.compile(r"gcodec/runtime/shipped/.*\.zip")
PROGRAM = """
import platform, sys
import gcodec, numba, numpy
assert gcodec.__file__.startswith(sys.prefix), gcodec.__file__
print(f"CPython {platform.python_version()}, NumPy {numpy.__version__}, Numba {numba.__version__}")
"""
# Settings that change which kernels run, and which gcodec is imported.
VARIABLES = ("GCODEC_CHECKED", "GCODEC_TARGET", "PYTHONHOME", "PYTHONPATH")


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    """Run a command in a folder; return its output, or exit with it if the command fails."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def supported(wheel: Path) -> list[str]:
    """Return the releases of Python that a wheel names, such as "3.10"."""
    classifiers = metadata_of(wheel).get_all("Classifier", [])
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    return [match[1] for each in classifiers if (match := re.fullmatch(pattern, each))]


def oldest(wheel: Path) -> list[str]:
    """Return requirements of the oldest dependencies of a wheel, such as numpy==1.26.*."""
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    return [f"{each.replace('>=', '==')}.*" for each in required if ";" not in each]


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def interpreters(releases: list[str]) -> dict[str, Path]:
    """Return a CPython that can create virtual environments, for each release that has one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    folders = [Path(sys.base_prefix, "bin"), *map(Path, os.get_exec_path())]
    folders += sorted(pyenv.glob("*/bin"))
    program = "import sys, venv; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    chosen = {}
    for release in releases:
        for path in (folder / f"python{release}" for folder in folders):
            if not path.is_file():
                continue
            # The names that pyenv puts on PATH fail for versions that are not selected.
            done = subprocess.run(
                [path, "-I", "-c", program], capture_output=True, text=True, check=False
            )
            if done.stdout.split() == ["cpython", release]:
                chosen[release] = path
                break
    return chosen


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name, without kernels and what depends on them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not KERNELS.fullmatch(name) and not name.endswith((".dist-info/WHEEL", "/RECORD"))
        }


def check_sources(sources: Path, wheel: Path, folder: Path) -> Path:
    """Check that an unpacked source distribution builds a pure wheel with the files of `wheel`.

    The pure wheel is returned.
    """
    built = folder / "pure"
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", built, sources], folder)
    (pure,) = built.iterdir()
    if not is_pure(pure):
        raise SystemExit(f"{pure.name}: the wheel of an sdist must be for all platforms")
    left, right = files_of(pure), files_of(wheel)
    differing = sorted(n for n in left.keys() | right.keys() if left.get(n) != right.get(n))
    if differing:
        raise SystemExit(f"{wheel.name} and the wheel of the sdist differ: {', '.join(differing)}")
    return pure


def is_pure(wheel: Path) -> bool:
    """Return whether a wheel is for all platforms, and so has no compiled kernels."""
    return wheel.name.endswith("-none-any.whl")


def check(
    python: Path, wheel: Path, sources: Path, folder: Path, requirements: Sequence[str] = ()
) -> str:
    """Install a wheel and use it; return the versions that were installed.

    Parameters
    ----------
    python : Path
        Interpreter of the new virtual environment.
    wheel : Path
        Wheel to install.
    sources : Path
        Unpacked source distribution, with the tests and the example. Its gcodec is not used.
    folder : Path
        New folder for the environment.
    requirements : sequence of str
        Releases of dependencies to install.

    Returns
    -------
    str
        Seconds and versions.

    Raises
    ------
    SystemExit
        A command failed, or kernels were compiled although the wheel carries them.
    """
    started = time.monotonic()
    folder.mkdir()
    programs, cache = folder / "env" / "bin", folder / "cache"
    if is_pure(wheel):
        variables = {"GCODEC_TARGET": os.environ.get("GCODEC_TARGET", "")}
    else:
        variables = {"GCODEC_CACHE_DIR": str(cache)}
    run([python, "-m", "venv", "--without-pip", folder / "env"], folder)
    # The pip of the running Python serves all environments. Compiling the bytecode of all packages
    # takes longer than the rest.
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    run([*pip, "install", "--no-compile", wheel, "pytest>=8", *requirements], folder)
    example = sources / EXAMPLE
    run([programs / "gcodec", "inspect", example], folder, **variables)
    run([programs / "gcodec", "inspect", "--max-nmse", "0.01", example], folder, **variables)
    # Without the options of the sources, which would import their gcodec.
    options = ["--quiet", "--noconftest", "-o", "addopts=", "-o", "pythonpath="]
    run([programs / "pytest", *options, sources / "tests/test_golden.py"], folder, **variables)
    if any(path.is_file() for path in cache.rglob("*")):
        raise SystemExit(f"{wheel.name} has compiled kernels on {python}")
    versions = run([programs / "python", "-c", PROGRAM], folder).strip()
    return f"{wheel.name}: {versions}, {time.monotonic() - started:.0f} s ({python})"


def main() -> int:
    """Check the distributions of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--ends", action="store_true", help="only on the oldest and the newest of these CPythons"
    )
    options = parser.parse_args()
    (archive,) = options.folder.resolve().glob("gcodec-*.tar.gz")
    (wheel,) = options.folder.resolve().glob("gcodec-*.whl")
    pythons = interpreters(supported(wheel))
    if not pythons:
        raise SystemExit(f"no CPython that can install {wheel.name}: need python3.10 or newer")
    if options.ends:
        releases = list(pythons)
        pythons = {release: pythons[release] for release in (releases[0], releases[-1])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.unpack_archive(archive, folder, filter="data")
        sources = folder / archive.name.removesuffix(".tar.gz")
        pure = check_sources(sources, wheel, folder)
        checks: list[tuple[Path, Path, Path, Path, Sequence[str]]] = [
            (pythons[release], wheel, sources, folder / release, ()) for release in pythons
        ]
        first = supported(wheel)[0]
        if first in pythons:
            checks.append((pythons[first], pure, sources, folder / "oldest", oldest(wheel)))
        else:
            print(f"no CPython {first}, so the oldest dependencies are not checked", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            for line in pool.map(check, *zip(*checks, strict=True)):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
