"""Damage the cache of compiled kernels: ``python -m fuzz.kernel_cache [--damages N]``.

A few kernels are compiled into a directory, for this processor and for a level of processors. Then
files are damaged as a power failure, a full disk or a user's mistake would damage them, and a
forked child loads and runs a kernel. The child must compute the right numbers, with an undamaged
file or with a new compilation, and leave undamaged files.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.fork import fork
from gcodec.runtime import jit, kernel_cache, processor, store
from gcodec.runtime.jit import Kernel

DAMAGES = 1000
PAGE = 4096  # bytes
LOADED, COMPILED, WRONG, FAILED = range(4)  # exit codes of a child
OUTCOMES = {LOADED: "loaded", COMPILED: "compiled", WRONG: "wrong results", FAILED: "exceptions"}
X, SMALL, POSITIONS = np.arange(100, dtype=np.float32), np.arange(200) % 3, np.arange(0, 64, 3)
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "arithmetic._add_scaled": lambda: (
        *(X.view(np.uint8), np.float32(0.5), np.ones(100, np.float32)),
    ),
    "bitmap._set_bits": lambda: (POSITIONS, np.zeros(8, np.uint8)),
    "escapes._find_from": lambda: (SMALL.astype(np.uint8), np.uint8(2), np.zeros(66, np.int64)),
}
RESULTS = {  # expected contents of the last argument
    "arithmetic._add_scaled": np.float32(0.5) * X + np.float32(1),
    "bitmap._set_bits": np.packbits(np.isin(np.arange(64), POSITIONS)),
    "escapes._find_from": np.flatnonzero(SMALL == 2),
}


@jit.kernel("int64")
def _next(x):
    return x + np.int64(1)


def damaged(damages: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Damage files of a cache in a folder, and load a kernel after each damage.

    Returns
    -------
    Counter
        Number of occurrences of each outcome.
    list of str
        Descriptions of forbidden outcomes: a damaged file must be compiled again, and an undamaged
        file must be loaded.
    """
    os.environ |= {"GCODEC_CACHE_DIR": str(folder), "GCODEC_TARGET": processor.NATIVE}
    kernels = {kernel.name: kernel for kernel in jit.kernels() if kernel.name in ARGUMENTS}
    build = kernel_cache.directory()
    assert build is not None
    kernel_cache.code_of(_next)  # load the compiler, so that no child has to
    for level in (other_level(), processor.NATIVE):
        for kernel in kernels.values():
            assert level is None or _outcome(kernel, level) == COMPILED, kernel.name
    own = {name: FileOf(name, one.signature) for name, one in kernels.items()}
    own["entry"] = FileOf("entry", "")
    whole = {path.name: path.read_bytes() for path in sorted(build.iterdir())}
    rng, count, failures = random.Random(seed), Counter[str](), []
    for number in range(damages):
        kernel = kernels[rng.choice(sorted(kernels))]
        files = dict(whole)
        kinds = [
            damage(rng.choice((kernel.name, kernel.name, kernel.name, "entry")), files, rng)
            for _ in range(rng.choice((1, 1, 1, 2, 3)))
        ]
        for path in build.iterdir():
            path.unlink()
        for name, data in files.items():
            (build / name).write_bytes(data)
        outcome = _outcome(kernel, processor.NATIVE)
        what = OUTCOMES.get(outcome, f"signal {-outcome}")
        count[what] += 1
        file = own[kernel.name].name  # the damaged file, or the file for the other processor
        if outcome != (LOADED if files[file] == whole[file] else COMPILED):
            failures.append(f"damage {number}, {' and '.join(kinds)}, {kernel.name}: {what}")
        failures += [
            f"damage {number}, {' and '.join(kinds)}: {one.name} remains damaged"
            for one in (own[kernel.name], own["entry"])
            if not one.is_whole(build)
        ]
    return count, failures


class FileOf:
    """The file of a kernel, or of the entry, for the processor of this process.

    Attributes
    ----------
    name : str
    identity : bytes
    """

    def __init__(self, kernel: str, signature: str) -> None:
        self.identity = kernel_cache.identity_of(kernel, signature, processor.target())
        self.name = store.file_name(kernel, self.identity)

    def is_whole(self, build: Path) -> bool:
        """Return whether a directory contains the file, undamaged."""
        path = build / self.name
        return path.exists() and store.unsealed(self.identity, path.read_bytes()) is not None


def other_level() -> str | None:
    """Return a level that this processor can run; None if there is none."""
    return next(iter(reversed(processor.levels())), None)


def damage(kernel: str, files: dict[str, bytes], rng: random.Random) -> str:
    """Damage a cache file of a kernel; return a description of the damage."""
    name = rng.choice([name for name in files if name.startswith(kernel)])
    data = bytearray(files[name])
    kind = rng.choice(("page", "page", "rest", "cut", "empty", "bit", "bits", "noise", "exchange"))
    at = rng.randrange(len(data)) if data else 0
    page = at - at % PAGE
    if kind == "page":
        data[page : page + PAGE] = bytes(len(data[page : page + PAGE]))
    elif kind == "rest":
        data[page:] = bytes(len(data) - page)
    elif kind == "cut":
        del data[at:]
    elif kind == "empty":
        data.clear()
    elif kind == "noise":
        data[page : page + PAGE] = rng.randbytes(len(data[page : page + PAGE]))
    elif kind == "exchange":
        other = rng.choice([one for one in files if one[-4:] == name[-4:]])
        files[name], files[other] = files[other], files[name]
        return f"{name} exchanged with {other}"
    elif data:
        for _ in range(1 if kind == "bit" else 16):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[name] = bytes(data)
    return f"{kind} of {name}"


def _outcome(kernel: Kernel, level: str) -> int:
    """Load and run a kernel in a child; return its exit code, or its negated signal number."""
    child = fork()
    if child == 0:
        code = FAILED
        try:
            os.environ["GCODEC_TARGET"] = level
            arguments, compiled = ARGUMENTS[kernel.name](), list[str]()
            with kernel_cache.watched(compiled.append):
                kernel(*arguments)
            right = np.array_equal(arguments[-1], RESULTS[kernel.name])
            code = WRONG if not right else COMPILED if compiled else LOADED
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> int:
    """Print the outcomes; return 1 if a forbidden outcome occurred."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.kernel_cache", description=__doc__)
    parser.add_argument("--damages", type=int, default=DAMAGES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count, failures = damaged(options.damages, options.seed, Path(folder))
    outcomes = ", ".join(f"{number} {what}" for what, number in sorted(count.items()))
    print(f"{options.damages} damages: {outcomes}")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
