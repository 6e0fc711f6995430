"""Answers of codecs to damaged bytes: ``python -m bench.corruption [--mutants N]``.

All encoders encode the same gradient. A third of the mutants is truncated, a third has one flipped
bit in the first 64 bytes, and a third has one flipped bit anywhere. A decoder raises an error,
silently returns other values, or returns the right values. Codecs of numcodecs are measured where
it is installed.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import gcodec

MUTANTS = 3000
ELEMENTS = 10_000
FRONT = 64  # bytes in which the second third of the mutants has its flip
SPECS = (
    *("raw", "qsgd", "qsgd:code=auto", "mxnet-2bit", "mxnet-1bit", "terngrad", "minmax", "sign"),
    *("minifloat", "topk", "randomk", "dct8", "powersgd", "ecsq", "lowrank", "lossless"),
    *("microscale", "blockwise", "sparseloco"),
)


class Coder(NamedTuple):
    """Bytes that an encoder wrote, and the matching decoder."""

    name: str
    data: bytes
    decode: Callable[[bytes], bytes]


class Row(NamedTuple):
    """Numbers of mutants that a decoder rejected, decoded wrongly, and decoded correctly."""

    name: str
    refused: int
    wrong: int
    right: int


def coders() -> list[Coder]:
    """Return coders for gcodec's codecs and for those of numcodecs."""
    x = np.random.default_rng(0).standard_normal(ELEMENTS).astype(np.float32)
    collected = [
        Coder(f"gcodec {spec}", gcodec.encode(x, spec), lambda data: gcodec.decode(data).tobytes())
        for spec in SPECS
    ]
    try:
        import numcodecs
    except ImportError:
        return collected
    # Small integers stored as float32, so that compression has an effect.
    y = np.round(x * 4).astype(np.float32)
    theirs = {
        "blosc-lz4": numcodecs.Blosc("lz4"),
        "blosc-zstd": numcodecs.Blosc("zstd"),
        "lz4": numcodecs.LZ4(),
        "zstd": numcodecs.Zstd(),
        "zstd + checksum": numcodecs.Zstd(checksum=True),
        "zlib": numcodecs.Zlib(),
    }
    if hasattr(numcodecs, "CRC32C"):  # from release 0.14 on
        theirs["crc32c"] = numcodecs.CRC32C()
    for name, codec in theirs.items():
        data = bytes(codec.encode(y))
        collected.append(Coder(f"numcodecs {name}", data, lambda d, c=codec: bytes(c.decode(d))))
    return collected


def mutant(data: bytes, number: int, rng: random.Random) -> bytes:
    """Damage bytes in one of three ways."""
    if number % 3 == 0:
        return data[: rng.randrange(len(data))]
    place = rng.randrange(8 * (min(FRONT, len(data)) if number % 3 == 1 else len(data)))
    out = bytearray(data)
    out[place // 8] ^= 1 << place % 8
    return bytes(out)


def row(coder: Coder, mutants: int) -> Row:
    """Decode mutants and count the answers."""
    rng, right = random.Random(0), coder.decode(coder.data)
    answers = Counter(_answer(coder, mutant(coder.data, i, rng), right) for i in range(mutants))
    return Row(coder.name, answers["refused"], answers["wrong"], answers["right"])


def _answer(coder: Coder, data: bytes, right: bytes) -> str:
    try:
        return "right" if coder.decode(data) == right else "wrong"
    except Exception:  # other codecs raise RuntimeError, ValueError, zlib.error …
        return "refused"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.corruption", description=__doc__)
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    options = parser.parse_args()
    print("| codec | error | other values, silently | right values |\n|---|---|---|---|")
    for coder in coders():
        counts = row(coder, options.mutants)
        print(
            f"| {counts.name} | {counts.refused} | {counts.wrong} | {counts.right} |", flush=True
        )


if __name__ == "__main__":
    main()
