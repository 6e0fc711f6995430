"""Remove each guard of the decode kernels in turn, and check that hostile inputs detect it.

    python tools/guard_mutation.py [--mutants N] [--only prefix_read]

A guard is an `if` that rejects: its body sets a status and returns. Each operand of an `or` in its
condition is a guard of its own. Kernels run as plain Python, which checks every index
(`fuzz.plain`), in a forked child for each removed guard. An input detects the removal if it gives
an index out of bounds or any error other than a `FormatError`, other values, an error instead of
values or values instead of an error, another kind of error, or a timeout. All of these fail a test
or a run of the fuzzer, because tests compare values and errors with the oracles.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import os
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import hostile, plain
from fuzz.calls import redirected
from fuzz.fork import fork
from gcodec.runtime.jit import Kernel

LONGEST = 20  # processor seconds for the inputs of a child
MOST = 200  # most inputs of a child
STATUSES = {
    *("TRUNCATED", "CORRUPT", "BROKEN", "_TRUNCATED", "_CORRUPT", "_BROKEN", "_SILENT"),
    *("_ENDS", "_INVALID", "_TABLE", "_WORD"),
}
ORDER = dict.fromkeys(("crafted", "error", "short", "blocks", "table", "mutant"), 0)
REFUSALS = ("False", "-1", "np.int64(-1)")


class Guard(NamedTuple):
    """A guard, and the code without the guard."""

    place: str
    condition: str
    own: types.CodeType
    without: types.CodeType


def refuses(node: ast.If) -> bool:
    """Return whether an `if` only sets a status and returns."""
    *before, last = node.body
    if node.orelse or not isinstance(last, ast.Return):
        return False
    if not all(isinstance(one, (ast.Assign, ast.AugAssign)) for one in before):
        return False
    if last.value is None:
        return bool(before)
    names = {one.id for part in node.body for one in ast.walk(part) if isinstance(one, ast.Name)}
    passed_on = ast.unparse(node.test).endswith("< 0")
    return bool(names & STATUSES) or passed_on or ast.unparse(last.value) in REFUSALS


def guards(codes: set[types.CodeType]) -> Iterator[Guard]:
    """Yield the guards of functions."""
    for name in sorted({code.co_filename for code in codes}):
        text = Path(name).read_text("utf-8")
        own = {(code.co_name, code.co_firstlineno): code for code in codes}
        places = [
            (node.lineno, part)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.If) and refuses(node)
            for part in range(len(_operands(node)))
        ]
        for line, part in sorted(places):
            tree = ast.parse(text)
            (node,) = (
                one
                for one in ast.walk(tree)
                if isinstance(one, ast.If) and one.lineno == line and refuses(one)
            )
            operands = _operands(node)
            condition = ast.unparse(operands[part])
            rest = operands[:part] + operands[part + 1 :]
            node.test = ast.BoolOp(ast.Or(), rest) if len(rest) > 1 else (rest or [_FALSE])[0]
            module = compile(ast.fix_missing_locations(tree), name, "exec")
            for code in _all_code(module):
                key = code.co_name, code.co_firstlineno
                if key in own and own[key].co_filename == name and _has(own[key], line):
                    yield Guard(f"{Path(name).name}:{line}", condition, own[key], code)


_FALSE = ast.Constant(False)


def _operands(node: ast.If) -> list[ast.expr]:
    test = node.test
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]


def _all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all_code(constant)


def _has(code: types.CodeType, line: int) -> bool:
    return any(at == line for _, _, at in code.co_lines())


def baseline(inputs: Sequence[hostile.Input]) -> list[tuple[Any, set[types.CodeType]]]:
    """Decode inputs as plain Python; return their outcomes, and the code that they reach."""
    outcomes = []
    for one in inputs:
        codes: set[types.CodeType] = set()

        def call(kernel: Kernel, args: tuple[Any, ...], codes: Any = codes) -> Any:
            if plain.supported(kernel):
                codes |= plain.codes_of(kernel)
            return plain.call(kernel, args)

        with redirected(call):
            outcomes.append((hostile.outcome(one), codes))
    return outcomes


def notices(guard: Guard, outcomes: Sequence[tuple[hostile.Input, Any]]) -> bool:
    """Run inputs in a child without the guard; return whether an outcome differs."""
    child = fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) != 0
    code = 1
    with contextlib.suppress(BaseException):
        signal.setitimer(signal.ITIMER_PROF, LONGEST)  # ends the child
        plain.REPLACED[guard.own] = guard.without
        plain.plain.cache_clear()
        with redirected(plain.call):
            code = int(any(hostile.outcome(one) != right for one, right in outcomes))
    os._exit(code)


def measured(inputs: Sequence[hostile.Input], only: str) -> Iterator[tuple[Guard, bool]]:
    """Yield the reached guards of the selected modules, and whether an input detects each."""
    outcomes = baseline(inputs)
    codes = set(itertools.chain.from_iterable(reached for _, reached in outcomes))
    codes = {code for code in codes if Path(code.co_filename).name.startswith(only)}
    for guard in guards(codes):
        own = [
            (one, right)
            for one, (right, reached) in zip(inputs, outcomes, strict=True)
            if guard.own in reached
        ]
        # Try the inputs that were made to be invalid first.
        own.sort(key=lambda pair: ORDER.get(pair[0].kind, 1))
        yield guard, any(notices(guard, own[at : at + MOST]) for at in range(0, len(own), MOST))


def main() -> None:
    """Print the guards whose removal no input detected, and the share of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="only guards of modules whose name begins with this"
    )
    options = parser.parse_args()
    inputs = hostile.inputs(options.seed, options.mutants)
    count = noticed = 0
    for guard, killed in measured(inputs, options.only):
        count += 1
        noticed += killed
        print(
            f"{'noticed' if killed else 'UNNOTICED'} {guard.place} {guard.condition}", flush=True
        )
    print(
        f"{noticed} of {count} guards ({100 * noticed / max(count, 1):.1f} %), "
        f"{len(inputs)} inputs"
    )


if __name__ == "__main__":
    main()
