"""Branch coverage of the decode kernels, which run as plain Python: ``python -m fuzz.branches``.

This module needs coverage.py. It counts the branches of all kernels and their helpers that hostile
inputs reach and that can run as plain Python; see `plain`.
"""

from __future__ import annotations

import argparse
import ast
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz import hostile, plain
from fuzz.calls import redirected
from gcodec.runtime import jit
from gcodec.runtime.jit import Kernel


def reached(inputs: Sequence[hostile.Input]) -> set[types.CodeType]:
    """Decode inputs with plain-Python kernels; return the code objects of these kernels."""
    codes: set[types.CodeType] = set()

    def call(kernel: Kernel, args: tuple[Any, ...]) -> Any:
        if plain.supported(kernel):
            codes.update(plain.codes_of(kernel))
        return plain.call(kernel, args)

    with redirected(call):
        for one in inputs:
            hostile.outcome(one)
    return codes


def main() -> None:
    """Print the share of branches that were taken, and list the branches that were not."""
    try:
        import coverage
    except ImportError as error:
        raise ImportError("coverage of kernels needs coverage: pip install coverage") from error
    parser = argparse.ArgumentParser(prog="python -m fuzz.branches", description=__doc__)
    parser.add_argument("--mutants", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    inputs = hostile.inputs(options.seed, options.mutants)
    measured = coverage.Coverage(
        data_file=None, branch=True, include=[str(jit.KERNELS / "**" / "*.py")]
    )
    measured.start()
    try:
        codes = reached(inputs)
    finally:
        measured.stop()
    total = taken = 0
    missing = []
    for name in sorted({code.co_filename for code in codes}):
        lines = _lines(name, codes)
        analysis = measured._analyze(name)
        stats = analysis.branch_stats()
        total += sum(count for line, (count, _) in stats.items() if line in lines)
        taken += sum(count for line, (_, count) in stats.items() if line in lines)
        for line, targets in sorted(analysis.missing_branch_arcs().items()):
            if line in lines:
                missing += [
                    f"{Path(name).name}:{line} to {max(to, 0) or 'the end'}" for to in targets
                ]
    print(
        f"{taken} of {total} branches ({100 * taken / max(total, 1):.1f} %) of {len(codes)} "
        f"functions, by {len(inputs)} inputs"
    )
    print("\n".join(missing))


def _lines(name: str, codes: set[types.CodeType]) -> set[int]:
    """Return the line numbers of the bodies of functions."""
    begins = {code.co_firstlineno for code in codes if code.co_filename == name}
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(Path(name).read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first in begins and node.end_lineno is not None:
                numbers |= set(range(node.body[0].lineno, node.end_lineno + 1))
    return numbers


if __name__ == "__main__":
    main()
