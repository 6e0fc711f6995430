"""Compile the kernels that a wheel carries: ``python tools/compile_kernels.py [-j N]``.

For each level of processors that this machine can run, the script compiles all kernels and writes
an archive to ``gcodec/runtime/shipped``. Then ``python -m build --wheel`` makes a wheel that
carries the archives; see ``hatch_build.py``. Archives of other sources are removed first; those of
levels that this machine cannot run stay. Building takes about two minutes of processor time for
each level. With ``--cached``, the script takes the kernels that the user's cache already contains
for the level, which ``GCODEC_TARGET=LEVEL gcodec warmup`` has compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # these sources, not an installed gcodec

from gcodec.runtime import jit, kernel_cache, processor, shipped
from gcodec.runtime.build_id import build_id
from gcodec.runtime.warmup import compile_kernels


def compile_level(level: str, processes: int) -> None:
    """Compile all kernels for a level, and write its archive."""
    kernels = jit.kernels()
    for _ in compile_kernels(kernels, processes):
        pass

    def codes() -> Iterator[tuple[str, str, bytes]]:
        yield "entry", "", kernel_cache.entry_code()
        for kernel in kernels:
            yield kernel.name, kernel.signature, kernel_cache.compiled(kernel).packed()

    path = shipped.archive_of(level)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")  # an interrupted run leaves no incomplete archive
    shipped.write(part, codes(), processor.of_level(level))
    part.replace(path)


def is_current(path: Path) -> bool:
    """Return whether an archive was made of these sources."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment == build_id().encode()
    except zipfile.BadZipFile:
        return False


def main() -> int:
    """Compile each level in a process of its own, because kernels depend on the level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--level", choices=processor.levels(), help="compile this level only")
    parser.add_argument(
        "--missing", action="store_true", help="skip levels that have an archive of these sources"
    )
    parser.add_argument(
        "--cached", action="store_true", help="use and fill the cache of this user"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        compile_level(options.level, options.jobs)
        return 0
    for path in shipped.FOLDER.glob("*.zip"):
        if not is_current(path):
            path.unlink()
    levels = [options.level] if options.level else processor.levels()
    if not levels:
        print("no level fits this processor and system: its wheel is the one for all platforms")
    for level in levels:
        path = shipped.archive_of(level)
        if options.missing and path.exists():
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as cache:
            variables = {"GCODEC_TARGET": level}
            if not options.cached:
                variables["GCODEC_CACHE_DIR"] = cache
            command = [sys.executable, __file__, "--here", "--level", level]
            subprocess.run(
                [*command, "-j", str(options.jobs)], env={**os.environ, **variables}, check=True
            )
        seconds = time.monotonic() - started
        print(f"{path}   {path.stat().st_size / 1e6:.2f} MB   {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
