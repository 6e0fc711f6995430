"""Measure all figures or a selection: ``python -m fuzz.figures [--short] [F1 F2 …]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from fuzz.figures.bounds import bounds
from fuzz.figures.damage import damage
from fuzz.figures.exhaustive import exhaustive
from fuzz.figures.faults import faults
from fuzz.figures.figure import Figure
from fuzz.figures.loops import loops
from fuzz.figures.threads import threads

FIGURES: dict[str, Callable[[bool], Figure]] = {
    "F1": damage,
    "F2": exhaustive,
    "F3": loops,
    "F7": bounds,
    "F9": faults,
    "F10": threads,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print figures; return 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.figures", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="F1", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args(arguments)
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"no figure {min(unknown)}")
    failed = 0
    for name in options.figures or FIGURES:
        began = time.perf_counter()
        figure = FIGURES[name](options.short)
        print(figure.text(), f"\n    {time.perf_counter() - began:.0f} s", flush=True)
        failed += bool(figure.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
