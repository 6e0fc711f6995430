"""Print the size and the speed of lossless beside zipnn, pcodec, zstd and Blosc.

    python -m bench.lossless --python PEERS/bin/python [FILE ...]

PEERS is an environment with zipnn, google-crc32c, pcodec, zstandard, blosc2 and NumPy. zipnn
decodes damaged bytes to other numbers without an error, so it is also measured with the checksum
that frames have.

Files are dumps; float32 tensors of theirs are measured as they are, rounded to bfloat16, and
rounded to float8_e4m3fn, for which a scale makes the largest magnitude of each tensor 448.
``--train FOLDER`` first trains a small GPT with AdamW, and writes its gradient, its weights and
the states of the optimizer to files in this folder, which are measured too. ``--width 640`` makes
a GPT of 20 million weights in place of one of 2 million.

Each call codes a tensor. With ``--flat``, all tensors of a file are joined to one, as DDP joins
gradients to buckets. With ``--group-below N``, `encode_many` codes each file to one message, in
which tensors of fewer elements share frames; the other coders have no such call.

Each cell contains the bits per value, and how many million values one core encodes and decodes in
a second: the best of several rounds for each call, without the cost of reading files. Each round
multiplies the tensors by another number before it rounds them, so that no coder finds the code of
an earlier round in a cache. All coders are bound to the same core.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import gcodec
from bench.low_rank import RUN, tensors_of
from gcodec.tensorfiles.dumps import write_dump

_WORKER = Path(__file__).with_name("lossless_worker.py")
_ROUNDS = 15
_STEPS = 200
MODES = ("lossless:mode=fast", "lossless:mode=small")
DTYPES = {
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}
_LARGEST = 448  # number of float8_e4m3fn


class Measured(NamedTuple):
    """Bits of all tensors, and the seconds for encoding and decoding them."""

    nbits: float
    encoding: float
    decoding: float


def train(folder: Path, width: int) -> list[str]:
    """Train a GPT; write its last gradient, its weights and AdamW's states; return the paths."""
    import torch

    from examples.convergence.tasks import error, large_gpt

    torch.manual_seed(1)
    task = large_gpt(width)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), task.adam_rate, weight_decay=0.1)
    batches = task.batches(1, 0, 1)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = error(model, *next(batches))
        loss.backward()
        optimizer.step()
    named = dict(model.named_parameters())
    parts: dict[str, Callable[[Any], Any]] = {
        "gradient": lambda p: p.grad,
        "weights": lambda p: p.detach(),
        "adam-m": lambda p: optimizer.state[p]["exp_avg"],
        "adam-v": lambda p: optimizer.state[p]["exp_avg_sq"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for part, of in parts.items():
        path = folder / f"{part}.safetensors"
        write_dump(path, ((name, of(p).numpy()) for name, p in named.items()))
        paths.append(str(path))
    return paths


def timed(call: Callable[[Any], Any], argument: Any) -> tuple[Any, float]:
    """Return the result of a call, and its processor seconds."""
    start = time.process_time()
    result = call(argument)
    return result, time.process_time() - start


def scaled(x: np.ndarray, dtype: str) -> np.ndarray:
    """Multiply a float32 tensor so that it fits floats of 8 bits; keep it for other dtypes."""
    if dtype != "float8_e4m3fn":
        return x
    return x * np.float32(_LARGEST / (np.abs(x).max(initial=0) or 1))


def rounds_of(x: np.ndarray, dtype: str) -> list[np.ndarray]:
    """Return a float32 tensor times numbers from 1 down to a half, each rounded to a dtype."""
    factors = 1 - np.arange(_ROUNDS, dtype=np.float32) / _ROUNDS / 2
    return [(x * factor).astype(DTYPES[dtype]) for factor in factors]


def own(tensors: Sequence[np.ndarray], dtype: str, spec: str, group_below: int | None) -> Measured:
    """Measure a mode of lossless; with `group_below`, `encode_many` codes all tensors."""
    codec, total = gcodec.parse(spec), Measured(0, 0, 0)
    if group_below is not None:
        encode_all = functools.partial(gcodec.encode_many, codec=codec, group_below=group_below)
        return measured(messages(tensors, dtype), encode_all, gcodec.decode_many)
    for x in tensors:
        rounds = messages([x], dtype)
        each = measured(rounds, lambda x: gcodec.encode(x["0"], codec), gcodec.decode)
        total = Measured(*(a + b for a, b in zip(total, each, strict=True)))
    return total


def messages(tensors: Sequence[np.ndarray], dtype: str) -> Iterator[dict[str, np.ndarray]]:
    """Return copies of all tensors in each round, as the other coders get them, by name."""
    for each in zip(*(rounds_of(x, dtype) for x in tensors), strict=True):
        yield {str(k): x.copy() for k, x in enumerate(each)}


def measured(
    rounds: Iterable[dict[str, np.ndarray]],
    encode: Callable[[dict[str, np.ndarray]], bytes],
    decode: Callable[[bytes], Any],
) -> Measured:
    """Return the bits of the first round, and the least seconds of all."""
    nbits, encoding, decoding = 0, math.inf, math.inf
    for tensors in rounds:
        coded, seconds = timed(encode, tensors)
        encoding = min(encoding, seconds)
        decoded, seconds = timed(decode, coded)
        decoding = min(decoding, seconds)
        if not nbits:
            nbits = 8 * len(coded)
            decoded = decoded if isinstance(decoded, dict) else {"0": decoded}
            assert all(decoded[name].tobytes() == x.tobytes() for name, x in tensors.items())
    return Measured(nbits, encoding, decoding)


def peers(python: str, tensors: Sequence[np.ndarray], dtype: str) -> dict[str, Measured | None]:
    """Measure other coders in the environment of the given Python; None lacks the dtype."""
    arrays = {
        f"{k} {number}": each.reshape(-1).view(f"u{each.itemsize}")
        for k, x in enumerate(tensors)
        for number, each in enumerate(rounds_of(x, dtype))
    }
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "in.npz"), Path(folder, "out.json")
        np.savez(source, **arrays)  # type: ignore[arg-type]
        subprocess.run(
            [python, "-I", str(_WORKER), str(source), str(result)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        results = json.loads(result.read_text("utf-8"))
    return {name: Measured(*each) if each else None for name, each in results.items()}


def better(one: Measured, two: Measured) -> Measured:
    """Return the least seconds of two measurements."""
    return Measured(*(min(a, b) for a, b in zip(one, two, strict=True)))


def table(
    paths: Sequence[str], python: str | None, *, flat: bool, group_below: int | None = None
) -> Iterator[str]:
    """Return the rows of a Markdown table: one for each file and dtype."""
    header_shown = False
    for path in paths:
        for dtype in DTYPES:
            tensors = [scaled(x, dtype) for x in tensors_of(path).values() if x.size]
            if flat:
                tensors = [np.concatenate([x.reshape(-1) for x in tensors])]
            modes = {spec: own(tensors, dtype, spec, group_below) for spec in MODES}
            others = peers(python, tensors, dtype) if python else {}
            # Our own coder is timed before and after the others, as the processor's speed varies.
            for spec, before in modes.items():
                modes[spec] = better(before, own(tensors, dtype, spec, group_below))
            if not header_shown:
                names = [spec.partition("=")[2] for spec in MODES] + [*others]
                yield f"| file | dtype | {' | '.join(names)} |"
                yield f"|---|---|{'---|' * len(names)}"
                header_shown = True
            values = sum(x.size for x in tensors)
            cells = [cell(values, each) for each in (*modes.values(), *others.values())]
            yield f"| {Path(path).stem} | {dtype} | {' | '.join(cells)} |"


def cell(values: int, measured: Measured | None) -> str:
    """Return bits per value and million values per second as a table cell."""
    if measured is None:
        return "–"
    speeds = (values / seconds / 1e6 for seconds in measured[1:])
    return f"{measured.nbits / values:.3f}, {' / '.join(f'{speed:.0f}' for speed in speeds)}"


def main() -> None:
    """Parse arguments, train, measure and print."""
    os.environ["GCODEC_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    parser = argparse.ArgumentParser(prog="python -m bench.lossless", description=__doc__)
    parser.add_argument("files", nargs="*", default=[str(sorted(RUN.iterdir())[-1])])
    parser.add_argument("--python", help="Python of an environment that has the other coders")
    parser.add_argument(
        "--train", type=Path, metavar="FOLDER", help="train, and measure the result"
    )
    parser.add_argument("--width", type=int, default=208, help="width of the trained GPT")
    parser.add_argument("--flat", action="store_true", help="code each file as one vector")
    parser.add_argument(
        "--group-below",
        type=int,
        metavar="N",
        help="code each file as one message of encode_many, with this group_below",
    )
    options = parser.parse_args()
    trained = train(options.train, options.width) if options.train else []
    files, below = [*options.files, *trained], options.group_below
    for line in table(files, options.python, flat=options.flat, group_below=below):
        print(line, flush=True)


if __name__ == "__main__":
    main()
