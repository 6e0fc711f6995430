"""Print the size of patches between consecutive checkpoints beside the layouts of other systems.

    python -m bench.patch [--python PEERS/bin/python]

A small GPT is trained with AdamW and master weights in float32. Then, from the same state, it
takes a few steps at each learning rate; the checkpoints of the last two steps, rounded to
bfloat16, are the old and the new weights. Rows are learning rates. Cells contain the bits for each
changed weight and, in brackets, the bits for each weight. Those of frames include names, headers,
checksums and digests of all tensors, of which two thirds are biases and norms of this small model;
payloads lack names, headers and checksums, and so do the layouts of other systems. PEERS is an
environment with zstandard and NumPy; without it, there are no columns with zstd. The last lines
state the speed of one core: the least processor time of several calls.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import gcodec

_STEPS = 50
_WIDTH, _LAYERS = 384, 2
_RATES = 1e-6, 3e-6, 1e-5, 3e-5, 1e-4
_LAST = 3  # steps at a learning rate
_ROUNDS = 5
_TIMED = 1 << 24  # weights
_ZSTD = """
import sys, numpy, zstandard
parts = numpy.load(sys.argv[1])
print(*(len(zstandard.compress(parts[name].tobytes(), int(sys.argv[2]))) for name in parts.files))
"""

Tensors = dict[str, np.ndarray]
"""Weights by name, as bfloat16."""


def checkpoints(rates: Sequence[float]) -> Iterator[tuple[Tensors, Tensors]]:
    """Train, and yield old and new weights for each learning rate."""
    import torch

    from examples.convergence.tasks import error, large_gpt, share_of_rate

    torch.manual_seed(1)
    task = large_gpt(_WIDTH, _LAYERS)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), task.adam_rate, weight_decay=0.1)
    batches = task.batches(1, 0, 1)

    def step(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        error(model, *next(batches)).backward()
        optimizer.step()

    for number in range(_STEPS):
        step(task.adam_rate * share_of_rate(task, number))
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for rate in rates:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(copy.deepcopy(state[1]))
        for _ in range(_LAST - 1):
            step(rate)
        old = _rounded(model)
        step(rate)
        yield old, _rounded(model)


def _rounded(model: Any) -> Tensors:
    return {
        name: parameter.detach().numpy().astype(ml_dtypes.bfloat16)
        for name, parameter in model.named_parameters()
    }


# --- Layouts of other systems. Each function returns the bytes of a tensor's message.


def gaps(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the changed weights, and the gaps between them."""
    positions = np.flatnonzero(old != new)
    return positions, np.diff(positions, prepend=-1) - 1


def trl(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return TRL's tensors: new values, and gaps as u16, or as u32 if one needs it."""
    positions, between = gaps(old, new)
    kind = np.uint16 if between.max(initial=0) < 1 << 16 else np.uint32
    return _joined(new[positions], between.astype(kind))


def nemo_overwrite(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return NeMo-RL's gaps and new values; its messages are compressed by zstd."""
    return trl(old, new)


def nemo_xor(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return NeMo-RL's gaps, and the exclusive or of old and new values."""
    return trl(old, np.where(old != new, old ^ new, old))


def pulse(old: np.ndarray, new: np.ndarray, width: int) -> np.ndarray:
    """Return PULSE's row deltas, column deltas, absolute in a new row, and new values."""
    positions, _ = gaps(old, new)
    rows, columns = np.divmod(positions, width)
    row_deltas = np.diff(rows, prepend=0)
    is_new = row_deltas > 0
    is_new[:1] = True
    column_deltas = np.where(is_new, columns, np.diff(columns, prepend=0))
    row_kind = np.uint8 if row_deltas.max(initial=0) < 1 << 8 else np.int32
    column_kind = np.uint16 if column_deltas.max(initial=0) < 1 << 16 else np.int32
    return _joined(row_deltas.astype(row_kind), column_deltas.astype(column_kind), new[positions])


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])


def messages(old: Tensors, new: Tensors) -> dict[str, np.ndarray]:
    """Return the bytes of all tensors in each layout."""
    layouts: dict[str, list[np.ndarray]] = {}
    for name, array in new.items():
        a, b = (x.reshape(-1).view(np.uint16) for x in (old[name], array))
        for layout, data in (
            ("TRL", trl(a, b)),
            ("NeMo-RL overwrite", nemo_overwrite(a, b)),
            ("NeMo-RL xor", nemo_xor(a, b)),
            ("PULSE", pulse(a, b, array.shape[-1])),
            ("XOR", (a ^ b).view(np.uint8)),
        ):
            layouts.setdefault(layout, []).append(data)
    return {layout: np.concatenate(parts) for layout, parts in layouts.items()}


def zstd_sizes(python: str, parts: dict[str, np.ndarray], level: int) -> dict[str, int]:
    """Return the sizes of byte strings after zstd, in the environment of the given Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.npz")
        np.savez(path, **parts)  # type: ignore[arg-type]
        command = [python, "-I", "-c", _ZSTD, str(path), str(level)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(zip(parts, map(int, output.split()), strict=True))


def own_nbytes(old: Tensors, new: Tensors) -> tuple[int, int]:
    """Return the size of all patches, and of their payloads; check that they apply."""
    total = payloads = 0
    for name, array in new.items():
        frame = gcodec.encode_patch(array, base=old[name], name=name)
        assert gcodec.apply_patch(frame, old[name]).tobytes() == array.tobytes()
        total += len(frame)
        payloads += gcodec.Frame.from_bytes(frame).payload.data.size
    return total, payloads


def sizes(old: Tensors, new: Tensors, python: str | None) -> dict[str, int]:
    """Return the bytes of all tensors in each layout."""
    parts = messages(old, new)
    frames, payloads = own_nbytes(old, new)
    result = {"frames": frames, "payloads": payloads, "TRL": parts.pop("TRL").size}
    if python is None:
        del parts["XOR"]
        return result | {name: data.size for name, data in parts.items()}
    xor = {"XOR": parts.pop("XOR")}
    compressed = zstd_sizes(python, parts, 1)
    result |= {f"{name}, zstd": size for name, size in compressed.items()}
    return result | {"zstd of the XOR": zstd_sizes(python, xor, 3)["XOR"]}


def table(
    pairs: Iterator[tuple[Tensors, Tensors]], rates: Sequence[float], python: str | None
) -> Iterator[str]:
    """Return the rows of a Markdown table: one for each learning rate."""
    for number, (rate, (old, new)) in enumerate(zip(rates, pairs, strict=True)):
        measured = sizes(old, new, python)
        if not number:
            yield f"| learning rate | changed | {' | '.join(measured)} |"
            yield f"|---|---:|{'---:|' * len(measured)}"
        weights = sum(x.size for x in new.values())
        changed = sum(
            np.count_nonzero(old[name].view(np.uint16) != x.view(np.uint16))
            for name, x in new.items()
        )
        cells = [
            f"{8 * nbytes / max(changed, 1):.2f} ({8 * nbytes / weights:.3f})"
            for nbytes in measured.values()
        ]
        yield f"| {rate:g} | {100 * changed / weights:.2f} % | {' | '.join(cells)} |"


def least_seconds(call: Callable[[], Any]) -> float:
    """Return the least processor seconds of several calls."""
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def speeds(n: int = _TIMED) -> Iterator[str]:
    """Return lines about the speed of one core on n weights, of which 1 % changes."""
    from gcodec.codecs.patch import codec as patch_codec

    rng = np.random.default_rng(0)
    exact = (0.02 * rng.standard_normal(n)).astype(np.float32)
    step = np.float32(2.4e-7) * np.clip(2 * rng.standard_normal(n), -1, 1).astype(np.float32)
    old, new = (x.astype(ml_dtypes.bfloat16) for x in (exact, exact + step))
    patterns = old.view(np.uint16)
    changed = np.count_nonzero(patterns != new.view(np.uint16))
    frame = gcodec.encode_patch(new, base=old)
    yield f"{n:,} bfloat16, of which {100 * changed / n:.2f} % change, M weights/s on one core:"
    calls: dict[str, Callable[[], Any]] = {
        "encode_patch": lambda: gcodec.encode_patch(new, base=old),
        "apply_patch": lambda: gcodec.apply_patch(frame, old),
        "digest of the base": lambda: patch_codec.digest_of(patterns),
    }
    seconds = {name: least_seconds(call) for name, call in calls.items()}
    seconds["apply_patch in place"] = in_place = float("inf")
    for _ in range(_ROUNDS):
        weights = old.copy()
        start = time.process_time()
        gcodec.apply_patch(frame, weights, out=weights)
        in_place = min(in_place, time.process_time() - start)
    seconds["apply_patch in place"] = in_place
    seconds["the same without the digest"] = in_place - seconds["digest of the base"]
    for name, each in seconds.items():
        yield f"- {name}: {n / each / 1e6:.0f}"


def main() -> None:
    """Parse arguments, train, measure and print."""
    os.environ["GCODEC_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(prog="python -m bench.patch", description=__doc__)
    parser.add_argument("--python", help="Python of an environment that has zstandard")
    options = parser.parse_args()
    for line in table(checkpoints(_RATES), _RATES, options.python):
        print(line, flush=True)
    for line in speeds():
        print(line, flush=True)


if __name__ == "__main__":
    main()
