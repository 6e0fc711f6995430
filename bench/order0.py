"""Compare ecsq on small tensors with a scalar quantizer and an order-0 entropy code.

    python -m bench.order0 DUMP...

Tensors have 4 Ki to 64 Ki values; each is coded at two errors. The rival has a dead zone and
centroids, the step that gives ecsq's own error, and a rANS string with its own frequency table
(`gcodec.entropy`); the size of ecsq is that of its whole payload. The program prints the ratio of
ecsq's size to the rival's, the worst first.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

import gcodec
from gcodec.tensorfiles.dumps import open_dump

LEAST, MOST = 1 << 12, 1 << 16
ERRORS = (0.02, 0.1)
_UP, _DEAD = 0.4, 0.6
_LARGEST = 127  # largest magnitude that the rival distinguishes
_HALVINGS = 40


def levels(x: np.ndarray, step: float) -> tuple[np.ndarray, float]:
    """Return twice the magnitude of each level, plus its sign, and the nmse."""
    y = np.abs(x) / step
    k = np.where(y < _DEAD, 0, np.minimum(np.floor(y + _UP), _LARGEST)).astype(np.int64)
    sums, counts = np.bincount(k, y), np.bincount(k)
    means = sums / np.maximum(counts, 1)
    means[0] = 0
    off = y - means[k]
    return 2 * k + (x < 0) * (k > 0), float((off**2).sum() / (y**2).sum())


def rival_nbits(x: np.ndarray, error: float) -> int:
    """Return the bits of the rival at the given error or slightly below it."""
    low, high = np.abs(x).max() / _LARGEST, np.abs(x).max() * 4
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if levels(x, middle)[1] <= error else (low, middle)
    return gcodec.entropy.parse("rans").encode(levels(x, low)[0]).nbits


@click.command()
@click.argument("dumps", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def main(dumps: tuple[str, ...]) -> None:
    """Print the ratios."""
    shares = []
    for path in dumps:
        with open_dump(Path(path)) as dump:
            for entry in dump.entries:
                x = np.asarray(dump.load(entry), np.float32)
                if not LEAST <= x.size <= MOST or not x.any():
                    continue
                for error in ERRORS:
                    payload = gcodec.parse(f"ecsq:nmse={error}").encode(x)
                    off = payload.codec.decode(payload, x.shape).astype(np.float64) - x
                    met = float((off**2).sum() / (x.astype(np.float64) ** 2).sum())
                    wide = x.reshape(-1).astype(np.float64)
                    share = payload.nbits / rival_nbits(wide, met)
                    shares.append((share, f"{Path(path).stem} {entry.name} {x.size} {error}"))
    shares.sort(reverse=True)
    for share, text in shares[:10]:
        print(f"{share:.3f} {text}")
    each = np.array([share for share, _ in shares])
    above = np.count_nonzero(each > 1.02)
    print(f"{each.size} tensors and errors: mean {each.mean():.3f}, {above} above 1.02")


if __name__ == "__main__":
    main()
