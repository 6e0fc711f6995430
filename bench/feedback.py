"""Codecs under error feedback on the gradients of consecutive steps.

    python -m bench.feedback DUMP...

Dumps are of one run, in the order of its steps. For each codec, the decoded tensors of all steps
are summed, as an optimizer would do: the *cumulative* error is ‖Σ x − Σ x̂‖² / ‖Σ x‖² after the
last step, over all tensors, and *each step's* the mean of ‖x − x̂‖² / ‖x‖². Bits count whole
frames, per value. Tensors of up to 4096 values are sent uncompressed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

import gcodec
from gcodec.tensorfiles.dumps import open_dump

SPECS = (
    "ecsq:bits=1",
    "ecsq:bits=2",
    "ecsq:nmse=0.02",
    "minifloat:style=ieee",
    "minmax:bits=8",
    "topk:ratio=0.01",
    "mxnet-2bit:threshold=auto",
)
SMALL_NBYTES = 1 << 14  # size in bytes of 4096 float32 values
NAMES = {"minifloat:style=ieee": "fp4", "minmax:bits=8": "int8", "topk:ratio=0.01": "top-1 %"}

Gradient = dict[str, np.ndarray]


class Result(NamedTuple):
    """Result of a codec on a run.

    Attributes
    ----------
    bits : float
        Bits per value.
    each : float
        Mean nmse of a step.
    cumulative : float
        The nmse of the sum of all steps.
    """

    bits: float
    each: float
    cumulative: float


def measure(spec: str, decay: float | None, steps: list[Gradient]) -> Result:
    """Send all steps; without feedback if `decay` is None."""
    policy = gcodec.Policy([{"max_bytes": SMALL_NBYTES, "codec": "raw"}, {"codec": spec}])
    feedback = None if decay is None else gcodec.Feedback(policy, decay=decay)
    owed = {name: np.zeros(x.shape, np.float64) for name, x in steps[0].items()}
    total = {name: np.zeros(x.shape, np.float64) for name, x in steps[0].items()}
    nbits, errors = 0, []
    for number, step in enumerate(steps):
        off = norm = 0.0
        for name, x in step.items():
            if feedback is None:
                codec = policy.codec(name, x.shape, x.dtype)
                frame = gcodec.encode(x, codec, seed=number, name=name)
            else:
                frame = feedback.compress(name, x)
            sent = gcodec.decode(frame).astype(np.float64)
            nbits += 8 * len(frame)
            off += float(((x - sent) ** 2).sum())
            norm += float((x.astype(np.float64) ** 2).sum())
            owed[name] += x - sent
            total[name] += x
        errors.append(off / norm)
    left = sum(float((x**2).sum()) for x in owed.values())
    whole = sum(float((x**2).sum()) for x in total.values())
    values = sum(x.size for step in steps for x in step.values())
    return Result(nbits / values, float(np.mean(errors)), left / whole)


def load(paths: tuple[str, ...]) -> list[Gradient]:
    """Load the tensors that occur in all dumps."""
    steps = []
    for path in paths:
        with open_dump(Path(path)) as dump:
            steps.append({e.name: np.asarray(dump.load(e), np.float32) for e in dump.entries})
    names = [name for name in steps[0] if all(name in step for step in steps)]
    return [{name: step[name] for name in names} for step in steps]


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--decay", default=1.0, show_default=True, help="Of the residual.")
def main(dumps: tuple[str, ...], decay: float) -> None:
    """Print a table in Markdown."""
    steps = load(dumps)
    print("| codec | bits per value | each step's nmse | cumulative | without feedback |")
    print("|---|---:|---:|---:|---:|")
    for spec in SPECS:
        kept, plain = measure(spec, decay, steps), measure(spec, None, steps)
        name = f"{NAMES[spec]}, `{spec}`" if spec in NAMES else f"`{spec}`"
        print(
            f"| {name} | {kept.bits:.2f} | {kept.each:.4f} | {kept.cumulative:.5f} "
            f"| {plain.cumulative:.5f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
