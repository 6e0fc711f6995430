"""Print bits and speed of codecs and of NNCodec, as in the table of docs/rate-distortion.md.

NNCodec (PyPI ``nncodec``) is Fraunhofer HHI's implementation of ISO/IEC 15938-17, Neural Network
Coding. It needs an environment of its own; ``--python`` names the Python of that environment. All
coders code each tensor of the dumps at the same error. Bits and seconds between two settings are
interpolated as in `bench.rate_distortion`; seconds are processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.bits import EXAMPLE
from bench.rate_distortion import ERRORS, title
from bench.rd_grid import Dial, grid
from bench.rd_points import Curve, Dump, Point, curves, load_all, total

_WORKER = Path(__file__).with_name("nncodec_worker.py")
_ROUNDS = 3

Measured = dict[str, list[list[Curve]]]  # by coder: the curves of each tensor


def nncodec(python: str, dump: Dump) -> Measured:
    """Measure NNCodec's modes in the environment of the given Python."""
    arrays = {str(i): np.asarray(t.x, np.float32) for i, t in enumerate(dump.tensors)}
    targets = np.array([[*ERRORS, tensor.fp4.error] for tensor in dump.tensors])
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "in.npz"), Path(folder, "out.json")
        np.savez(source, targets=targets, **arrays)
        subprocess.run(
            [python, "-I", str(_WORKER), str(source), str(result)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        results = json.loads(result.read_text("utf-8"))
    return {
        f"NNCodec, {mode}": [[Curve(tuple(Point(*p) for p in each), True)] for each in tensors]
        for mode, tensors in results.items()
    }


def registered_codecs(dump: Dump, names: Sequence[str]) -> Measured:
    """Measure and time the named registered codecs, by default all.

    Dials that differ in speed count as separate coders.
    """
    results: Measured = {}
    for name, dials in grid().items():
        if not names or name in names:
            apart: dict[str, list[Dial]] = {}
            for dial in dials:
                apart.setdefault(f"`{name}{_slow(dial)}`", []).append(dial)
            for coder, measured in apart.items():
                results[coder] = [curves(measured, tensor.x, _ROUNDS) for tensor in dump.tensors]
    return results


def _slow(dial: Dial) -> str:
    return ":trellis=yes" if "trellis=yes" in dial.spec else ""


def lines(dumps: Sequence[Dump], python: str, names: Sequence[str]) -> Iterator[str]:
    """Return the table: a row for each dump, nmse and coder that reaches the error."""
    yield "| dump | nmse | coder | bits per value | encode, M/s | decode, M/s |"
    yield "|---|---|---|---|---|---|"
    for dump in dumps:
        results = {**nncodec(python, dump), **registered_codecs(dump, names)}
        fp4 = [tensor.fp4.error for tensor in dump.tensors]
        same = [(f"{error:g}", [error] * len(fp4)) for error in ERRORS]
        for error, targets in [*same, ("FP4's", fp4)]:
            for coder, tensors in results.items():
                if point := total(tensors, targets):
                    speeds = (dump.size / s / 1e6 for s in (point.encode, point.decode))
                    cells = [f"{point.nbits / dump.size:.3f}", *(f"{s:,.1f}" for s in speeds)]
                    yield f"| {' | '.join([title(dump), error, coder, *cells])} |"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.against_nncodec", description=__doc__)
    parser.add_argument("files", nargs="*", default=[str(EXAMPLE)], help="dumps, or folders")
    parser.add_argument("--python", required=True, help="Python of an environment with nncodec")
    parser.add_argument(
        "--codec", action="append", default=[], help="only these codecs; repeatable"
    )
    options = parser.parse_args()
    os.environ["GCODEC_NUM_THREADS"] = "1"
    for line in lines(load_all(options.files), options.python, options.codec):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
