"""Print the speed of codecs on a CUDA device, next to that of a device copy and of the CPU.

``python -m bench.gpu`` prints a table for docs/gpu.md; specs may be given as arguments. Encoding
is `Codec.encode`, whose payload stays on the device, and decoding is `Codec.decode` of that
payload. Codecs that code positions or coefficients leave their payload on the host; decoding is
then `gcodec.decode` of the frame to the device. Compressing is `Feedback.compress`, whose frame is
on the host. Speeds are GB of float32 per second; the speed of a copy counts the bytes that it
reads once, and the fractions are relative to that speed. The fastest round counts. The tensor is a
matrix with rows of 500 values, normal with a heavy tail, as in a gradient; the CPU is measured on
the smallest sizes.
``python -m bench.gpu --machine NAME --mb 16`` prints the rows of the device for
gcodec/advisor/machines.csv instead, with the speeds of the last size.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from typing import Any, NamedTuple, TextIO

import numpy as np

import gcodec
from gcodec.advisor.machines import CodingSpeed, Machine
from gcodec.runtime.device import Device, cuda_device, device_of

SPECS = (
    *("raw", "sign", "mxnet-2bit", "mxnet-1bit", "minmax", "minmax:bits=4", "terngrad"),
    *("terngrad:pack=base3", "qsgd:form=dense,bucket=512", "qsgd:code=rans,form=dense,bucket=512"),
    *("qsgd:code=context", "minifloat:code=none", "minifloat:code=huffman", "minifloat"),
    *("microscale", "microscale:format=nvfp4", "blockwise", "blockwise:kind=fp8,block=0"),
    *("lossless:mode=fast", "lossless:mode=small"),
    *("sparseloco", "topk", "randomk", "powersgd", "dct8", "dct8:layout=tiles"),
    *("ecsq:step=0.001", "ecsq"),
)
MEGABYTES = (1, 16, 256, 1024)
_MOST_ON_HOST = 16  # megabytes
_ROUNDS = 5
_COLUMNS = 500  # of the matrix; sizes in megabytes are whole rows


class Row(NamedTuple):
    """Measured speeds for a codec and a size, in GB/s; None for an omitted CPU measurement."""

    spec: str
    megabytes: float
    copy: float
    encode: float
    decode: float
    compress: float
    host_encode: float | None
    host_decode: float | None


def gradient(n: int) -> np.ndarray:
    """Return n values with a few large ones, like those of a gradient."""
    random = np.random.default_rng(0)
    part = random.standard_normal(min(n, 1 << 22), np.float32)
    part *= np.exp(random.standard_normal(part.size, np.float32))
    return np.resize(part, n) * np.float32(1e-3)


def seconds(call: Callable[[], Any], wait: Callable[[], Any], rounds: int) -> float:
    """Return the shortest time of a call, including the wait for the device."""
    call()  # compiles kernels, and fills the memory pool
    wait()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - begin)
    return min(times)


def rows(
    device: Device, specs: tuple[str, ...], megabytes: tuple[float, ...], rounds: int = _ROUNDS
) -> Iterator[Row]:
    """Measure codecs on tensors of the given sizes in megabytes."""
    word = device.zeros(1, np.uint8)

    def wait() -> None:
        device.to_host(word)

    for size in megabytes:
        host = gradient(int(size * 1e6 / 4)).reshape(-1, _COLUMNS)
        x = device.to_device(host)
        flat, nbytes = x.reshape(-1), x.nbytes / 1e9
        target = device.empty(x.size, np.float32)

        def copy(target: Any = target, flat: Any = flat) -> None:
            target[:] = flat

        copied = nbytes / seconds(copy, wait, rounds)
        for spec in specs:
            codec = gcodec.parse(spec)
            feedback = gcodec.Feedback(codec)
            calls: list[Callable[[], Any]] = [
                partial(codec.encode, x),
                _decoding(codec, x),
                partial(feedback.compress, "tensor", x),
            ]
            if size <= _MOST_ON_HOST:
                calls += [partial(codec.encode, host), _decoding(codec, host)]
            speeds: list[Any] = [nbytes / seconds(call, wait, rounds) for call in calls]
            yield Row(spec, size, copied, *speeds, *[None] * (5 - len(calls)))


def _decoding(codec: gcodec.Codec, x: Any) -> Callable[[], Any]:
    """Return the call that decodes an array to where it is."""
    payload = codec.encode(x)
    if device_of(payload.data) is device_of(x):
        return partial(codec.decode, payload, x.shape)
    return partial(gcodec.decode, gcodec.encode(x, codec), like=x)


def table(measured: Iterator[Row]) -> Iterator[str]:
    """Return the rows as a Markdown table."""
    yield (
        "| codec | MB | copy | encode | of copy | decode | of copy | compress | CPU encode "
        "| CPU decode |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in measured:
        cpu = ("–" if rate is None else f"{rate:.2f}" for rate in row[6:])
        numbers = (
            *(f"{row.copy:.0f}", f"{row.encode:.1f}", f"{row.encode / row.copy:.2f}"),
            *(f"{row.decode:.1f}", f"{row.decode / row.copy:.2f}", f"{row.compress:.1f}", *cpu),
        )
        yield f"| `{row.spec}` | {row.megabytes:g} | " + " | ".join(numbers) + " |"


def write_machine(file: TextIO, name: str, measured: Iterator[Row]) -> None:
    """Write rows for gcodec/advisor/machines.csv, of the last size that was measured."""
    speeds, megabytes = {}, 0.0
    for row in measured:
        spec, megabytes = str(gcodec.parse(row.spec)), row.megabytes
        speeds[spec] = CodingSpeed(1e9 / 4 * row.encode, 1e9 / 4 * row.decode)
    source = f"python -m bench.gpu --mb {megabytes:g}; {name}; {date.today().isoformat()}"
    machine_rows = Machine(name, source, speeds).rows()
    writer = csv.DictWriter(file, machine_rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(machine_rows)


def main() -> None:
    """Measure on device 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", default=SPECS, metavar="SPEC")
    parser.add_argument("--mb", type=float, nargs="+", default=MEGABYTES, help="sizes")
    parser.add_argument("--machine", metavar="NAME", help="print rows of the table of machines")
    asked = parser.parse_args()
    measured = rows(cuda_device(0), tuple(asked.specs), tuple(asked.mb))
    if asked.machine:
        write_machine(sys.stdout, asked.machine, measured)
        return
    for line in table(measured):
        print(line, flush=True)


if __name__ == "__main__":
    main()
