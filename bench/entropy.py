"""Print the symbols per second that each entropy coder writes and reads on one core.

Symbols are bytes: of 3 values, one of which has 80 %; of 16, normal; of 256, Laplace; and ternary
values packed five to a byte, counted individually. ``bits`` are per symbol. Every round times each
row once, and the table contains the medians. Coders of other packages are included where
installed: bitarray's Huffman codes (on a part of the symbols), constriction's ANS, and zstandard
with its shortest search for repetitions.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

_FEW_SYMBOLS = 1 << 18  # symbols for coders that are a thousand times slower


class Coder(NamedTuple):
    """An entropy coder to time: `write` returns a string, and `nbits` its length."""

    name: str
    write: Callable[[], Any]
    read: Callable[[Any], Any]
    nbits: Callable[[Any], int]
    symbols: int


def sources(n: int) -> dict[str, np.ndarray]:
    """Return n symbols of each kind."""
    rng = np.random.default_rng(0)
    normal = np.clip(np.rint(rng.standard_normal(n) * 2 + 7.5), 0, 15)
    laplace = np.clip(np.rint(rng.laplace(size=n) * 10 + 128), 0, 255)
    three = rng.choice(3, n, p=[0.8, 0.1, 0.1])
    return {
        name: x.astype(np.uint8) for name, x in (("3", three), ("16", normal), ("256", laplace))
    }


def gcodec_coders(x: np.ndarray, together: int = 1) -> Iterator[Coder]:
    """Return gcodec's coders for bytes that contain `together` symbols each."""
    from gcodec.entropy import tabled
    from gcodec.entropy.coder import BitSpan, ignore
    from gcodec.entropy.tabled import Table
    from gcodec.kernels.bits.bit_string import BitString
    from gcodec.kernels.bits.coded_mask import CodedMask
    from gcodec.kernels.numeric.byte_counts import byte_counts

    coded, counts, alphabet = (
        CodedMask.all(x.size),
        byte_counts(x),
        np.arange(256).astype(np.uint8),
    )
    for kind in ("huffman", "rans"):
        table = Table.own(kind, counts, alphabet)

        def encode(table: Table = table) -> Any:
            return tabled.write(table, lambda i, j, room: x[i:j], coded, BitString(), x.size)

        def decode(written: Any, kind: Any = kind) -> None:
            data, nbits, seek = written
            tabled.open(kind, BitSpan(data, 0, nbits, seek), alphabet, coded).read(ignore)

        yield Coder(
            f"gcodec {kind}", encode, decode, lambda written: written[1], x.size * together
        )


def foreign_coders(x: np.ndarray) -> Iterator[Coder]:
    """Return the installed coders of other packages."""
    counts = np.bincount(x, minlength=int(x.max()) + 1)
    if importlib.util.find_spec("bitarray"):
        from bitarray import bitarray
        from bitarray.util import huffman_code

        few = x[:_FEW_SYMBOLS].tolist()
        code = huffman_code({i: int(c) for i, c in enumerate(counts) if c})

        def encode_bits() -> Any:
            bits = bitarray()
            bits.encode(code, few)
            return bits

        yield Coder("bitarray", encode_bits, lambda b: list(b.decode(code)), len, len(few))
    if importlib.util.find_spec("constriction"):
        import constriction

        stream = constriction.stream
        model = stream.model.Categorical((counts / x.size).astype(np.float32), perfect=False)
        wide = x.astype(np.int32)

        def encode_ans() -> Any:
            coder = stream.stack.AnsCoder()
            coder.encode_reverse(wide, model)
            return coder.get_compressed()

        def decode_ans(words: Any) -> None:
            stream.stack.AnsCoder(words).decode(model, wide.size)

        yield Coder("constriction ANS", encode_ans, decode_ans, lambda w: 32 * len(w), x.size)
    if importlib.util.find_spec("zstandard"):
        import zstandard

        least = {"min_match": 7, "hash_log": 6, "chain_log": 6, "window_log": 17}
        settings = zstandard.ZstdCompressionParameters.from_level(1, **least)
        packer = zstandard.ZstdCompressor(compression_params=settings)
        unpacker, data = zstandard.ZstdDecompressor(), x.tobytes()
        yield Coder(
            "zstd",
            lambda: packer.compress(data),
            unpacker.decompress,
            lambda b: 8 * len(b),
            x.size,
        )


def measure(name: str, x: np.ndarray, coders: list[Coder], rounds: int, shown: Table) -> None:
    """Time coders on the same symbols, and append their rows to the table."""
    written = {coder.name: coder.write() for coder in coders}
    for coder in coders:
        coder.read(written[coder.name])
    times: dict[str, list[tuple[float, float]]] = {coder.name: [] for coder in coders}
    for _ in range(rounds):
        for coder in coders:
            start = time.perf_counter()
            coder.write()
            between = time.perf_counter()
            coder.read(written[coder.name])
            times[coder.name].append((between - start, time.perf_counter() - between))
    for coder in coders:
        write, read = np.median(times[coder.name], axis=0)
        bits = coder.nbits(written[coder.name]) / coder.symbols
        speeds = (f"{coder.symbols / seconds / 1e6:,.0f}" for seconds in (write, read))
        shown.add_row(name, coder.name, f"{bits:.4f}", *speeds)


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.entropy", description=__doc__)
    parser.add_argument("--symbols", type=int, default=1 << 24, help="default 16 Mi")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    os.environ["GCODEC_NUM_THREADS"] = "1"
    shown = Table("symbols", "coder", "bits", "write, M/s", "read, M/s", box=None, header_style="")
    for column in shown.columns[2:]:
        column.justify = "right"
    data = sources(options.symbols)
    for name, x in data.items():
        measure(name, x, [*gcodec_coders(x), *foreign_coders(x)], options.rounds, shown)
    trits = data["3"][: options.symbols // 5 * 5].reshape(-1, 5)
    packed = (trits @ np.array([1, 3, 9, 27, 81])).astype(np.uint8)
    measure("3, five to a byte", packed, list(gcodec_coders(packed, 5)), options.rounds, shown)
    Console(width=100).print(shown)


if __name__ == "__main__":
    sys.exit(main())
