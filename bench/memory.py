"""Peak resident memory of encoding and decoding, as a multiple of input plus output.

    python -m bench.memory [--elements N] [--dtype float16] [--only SPEC]

Each row is measured in a process of its own. The process imports gcodec, encodes and decodes 2^20
elements (which loads every kernel and starts the threads), returns free heap pages to the system
and reads its resident set: that is the baseline. It then fills the input, resets the kernel's
record of the peak (``/proc/self/clear_refs``), encodes, and reads the peak (``VmHWM``). *encode*
is the growth of the peak beyond the baseline, the input included, divided by the bytes of input
and frame. The input is dropped before decoding: *decode* is the growth of the peak beyond the
baseline, the frame included, divided by the bytes of frame and result.

Values are normal, 2^20 of them repeated. ``2d`` measures a matrix of 1024 columns, ``vector`` a
tensor of one dimension. Linux only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.table import Table

COLUMNS = 1024
SPECS = (
    *("raw", "sign", "sign:scale=l2", "mxnet-2bit", "mxnet-2bit:threshold=auto", "mxnet-1bit"),
    *("terngrad", "terngrad:pack=base3", "minmax", "minmax:bits=4,bucket=512", "topk", "randomk"),
    *("dct8", "qsgd:form=dense", "qsgd:bucket=512", "qsgd:bucket=512,code=auto"),
    *("qsgd:bucket=512,code=rans", "minifloat", "minifloat:code=none", "minifloat:block=32"),
    *("ecsq:step=1", "ecsq:nmse=0.05", "ecsq:rounding=stochastic,step=1", "powersgd", "lowrank"),
    *("qsgd", "topk:ratio=0.1", "mxnet-2bit:threshold=auto,form=auto", "terngrad:pack=context"),
    *("minifloat:format=e4m3", "ecsq:trellis=yes", "lossless", "microscale"),
    *("microscale:code=auto", "blockwise", "blockwise:code=auto", "sparseloco"),
    *("mxnet-2bit:threshold=auto,form=context", "microscale:format=nvfp4,code=auto"),
    *("ecsq:bits=1.5,trellis=yes", "sparseloco:k=32", "topk:ratio=0.5"),
    "randomk:ratio=0.5",
)
_PATTERN = 1 << 20  # period of the values, and elements of the warm-up
_HIGHEST_RATIO = 1.2


class Peak(NamedTuple):
    """Measurements of one process, in bytes.

    Attributes
    ----------
    source, frame : int
        Sizes of the input, which equals that of the decoded tensor, and of the frame.
    encode, decode : int
        Growth of the peak of resident memory, input and output included.
    """

    source: int
    frame: int
    encode: int
    decode: int

    @property
    def encode_ratio(self) -> float:
        """Peak of encoding divided by input plus frame."""
        return self.encode / (self.source + self.frame)

    @property
    def decode_ratio(self) -> float:
        """Peak of decoding divided by frame plus result."""
        return self.decode / (self.source + self.frame)


def measure(spec: str, elements: int, dtype: str, ndim: int) -> Peak:
    """Measure one codec in this process, which must not have measured anything else.

    Parameters
    ----------
    spec : str
        Spec of the codec.
    elements : int
        Number of elements, a multiple of 1024 if `ndim` is 2.
    dtype : str
        Dtype of the input.
    ndim : int
        Number of dimensions, 1 or 2.
    """
    import ml_dtypes

    import gcodec

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    codec = gcodec.parse(spec)
    pattern = np.random.default_rng(0).standard_normal(_PATTERN, dtype=np.float32).astype(kind)
    frame = gcodec.encode(_shaped(pattern, ndim), codec)
    gcodec.decode(frame)
    # Large results may use other kernels.
    gcodec.decode(frame, out=_shaped(np.empty_like(pattern), ndim))
    del frame
    _release()
    baseline = _resident("VmRSS")
    x = np.empty(elements, kind)
    for at in range(0, elements, _PATTERN):
        x[at : at + _PATTERN] = pattern[: elements - at]
    limits = gcodec.Limits(1 << 62, 1 << 62)
    _reset_peak()
    frame = gcodec.encode(_shaped(x, ndim), codec)
    encoded, source = _resident("VmHWM") - baseline, x.nbytes
    del x
    _release()
    _reset_peak()
    gcodec.decode(frame, limits=limits)
    return Peak(source, len(frame), encoded, _resident("VmHWM") - baseline)


def measure_apart(spec: str, elements: int, dtype: str = "float32", ndim: int = 1) -> Peak:
    """Call `measure` in a new process."""
    call = json.dumps([spec, elements, dtype, ndim])
    done = subprocess.run(
        [sys.executable, "-m", "bench.memory", "--measure", call],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{spec}: {done.stderr.strip().splitlines()[-1]}")
    return Peak(*json.loads(done.stdout))


def _shaped(x: np.ndarray, ndim: int) -> np.ndarray:
    return x.reshape(-1, COLUMNS) if ndim == 2 else x


def _release() -> None:
    """Return free heap pages to the system."""
    gc.collect()
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def _resident(field: str) -> int:
    """Read a field of the process's status, in bytes."""
    text = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


@click.command()
@click.option("--elements", default=1 << 28, show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--only", default="", help="Only codecs whose specification contains this text.")
@click.option("--exactly", default="", help="Only this codec, listed or not.")
@click.option("--ndim", default=1, show_default=True, type=click.IntRange(1, 2))
@click.option("--measure", "call", hidden=True)
def main(elements: int, dtype: str, only: str, exactly: str, ndim: int, call: str | None) -> None:
    """Print a row for each codec, measured in one process after another."""
    if call is not None:
        print(json.dumps(measure(*json.loads(call))))
        return
    headings = "codec", "frame, MiB", "encode", "decode", "over 1.2"
    shown = Table(*headings, box=None, header_style="")
    for column in shown.columns[1:]:
        column.justify = "right"
    for spec in [exactly] if exactly else [spec for spec in SPECS if only in spec]:
        peak = measure_apart(spec, elements, dtype, ndim)
        ratios = peak.encode_ratio, peak.decode_ratio
        over = "*" if peak.encode_ratio > _HIGHEST_RATIO else ""
        shown.add_row(spec, f"{peak.frame / 2**20:.1f}", *(f"{r:.3f}" for r in ratios), over)
    shape = "vector" if ndim == 1 else f"matrix of {COLUMNS} columns"
    print(f"{elements} {dtype} elements, a {shape}; peak / (input + frame)")
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
