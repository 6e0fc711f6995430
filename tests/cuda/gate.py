"""Compile every kernel for every architecture, and check the resources of each; see docs/gpu.md.

    python tests/cuda/gate.py
    python tests/cuda/gate.py --nvrtc FOLDER --architectures 90 120

The program prints a table for docs/gpu.md. It fails if a kernel spills, needs too many registers
or keeps an array in local memory, unless the lists in this file name the kernel. It uses NVRTC
from FOLDER, from the place in the variable GCODEC_NVRTC, or from the installed package.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import nvrtc
import shim

from gcodec.runtime.device import sources

REGISTERS = 64
# Kernels that may use more registers, on any architecture. Readers keep their position in a
# string, and the output positions of symbols, in registers: few threads suffice. Of the other
# kernels, `make_frequencies` runs as one warp and `start_search` as one thread; `find_scales`
# divides in float64, and `add_row_costs` accumulates five sums in 64 bits, which sm_107 and sm_120
# unroll further.
MORE_REGISTERS = {
    "read_words": 80,
    "read_pairs": 80,
    "make_frequencies": 80,
    "start_search": 72,
    "find_scales": 80,
    "add_row_costs": 80,
}
# Bytes of the stack frames of kernels that have one: each thread of these kernels keeps 16 symbols
# in an array with a variable index (`Share` in symbols.cuh, 80 bytes), and the parameters of a
# code that functions take by reference.
STACK = {
    "count_numbers": 80,
    "count_pairs": 80,
    "measure_words": 112,
    "write_words": 112,
    "measure_pairs": 160,
    "mark_pairs": 160,
    "write_pairs": 160,
}


class Result(NamedTuple):
    """Result of compiling a file for an architecture."""

    source: str
    architecture: int
    kernels: list[nvrtc.Resources]
    problems: list[str]
    seconds: float


def check(compiler: nvrtc.Compiler, path: Path, architecture: int) -> Result:
    """Compile a file for an architecture; return the problems as sentences."""
    begin = time.process_time()
    where = f"{path.name} for sm_{architecture}"
    try:
        actual = compiler.resources(path, architecture)
    except AssertionError as error:
        return Result(path.stem, architecture, [], [f"{where} does not compile: {error}"], 0)
    expected, compiled = set(shim.KERNEL.findall(path.read_text())), {x.kernel for x in actual}
    problems = [f"{where} has no {name} in its report." for name in sorted(expected - compiled)]
    problems += [f"{where} reports an unknown {name}." for name in sorted(compiled - expected)]
    for x in actual:
        allowed = (
            ("bytes of spills", x.spilled, 0),
            ("registers", x.registers, MORE_REGISTERS.get(x.kernel, REGISTERS)),
            ("bytes of stack", x.stack, STACK.get(x.kernel, 0)),
        )
        problems += [
            f"{x.kernel} in {where} needs {amount} {what}; allowed: {limit}."
            for what, amount, limit in allowed
            if amount > limit
        ]
    return Result(path.stem, architecture, actual, problems, time.process_time() - begin)


def _check(job: tuple[Path, Path, int]) -> Result:
    library, path, architecture = job
    return check(nvrtc.Compiler(library), path, architecture)


def results(
    compiler: nvrtc.Compiler, architectures: Sequence[int], processes: int
) -> Iterator[Result]:
    """Check all files for the given architectures."""
    paths = sources().values()
    jobs = [(compiler.path, *job) for job in itertools.product(paths, architectures)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_check, jobs, chunksize=8)


def table(compiler: nvrtc.Compiler, actual: Sequence[Result]) -> Iterator[str]:
    """Return the resources of kernels on each architecture as a Markdown table."""
    yield f"| {compiler} | kernels | most registers | above 64 | spills | stack frames |"
    yield "|---|---:|---|---:|---|---:|"
    for architecture in sorted({result.architecture for result in actual}):
        kernels = [x for r in actual if r.architecture == architecture for x in r.kernels]
        if not kernels:
            continue
        worst = max(kernels, key=lambda x: (x.registers, x.kernel))
        spills = ", ".join(f"`{x.kernel}`: {x.spilled} B" for x in kernels if x.spilled) or "none"
        above = sum(x.registers > REGISTERS for x in kernels)
        frames = sum(x.stack > 0 for x in kernels)
        yield (
            f"| sm_{architecture} | {len(kernels)} | {worst.registers} (`{worst.kernel}`) "
            f"| {above} | {spills} | {frames} |"
        )


def main() -> int:
    """Print a table and all problems; return 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvrtc", metavar="FOLDER", help="where libnvrtc.so lies")
    parser.add_argument("--architectures", type=int, nargs="+", help="all that NVRTC supports")
    parser.add_argument("-j", "--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    if asked.nvrtc:
        os.environ["GCODEC_NVRTC"] = asked.nvrtc
    compiler = nvrtc.installed()
    if compiler is None:
        print("NVRTC is missing: pip install nvidia-cuda-nvrtc", file=sys.stderr)
        return 1
    architectures = asked.architectures or compiler.architectures
    actual = list(results(compiler, architectures, asked.processes))
    print("\n".join(table(compiler, actual)))
    problems = sorted(problem for result in actual for problem in result.problems)
    print(f"\n{sum(result.seconds for result in actual):.0f} s of processor time", file=sys.stderr)
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
