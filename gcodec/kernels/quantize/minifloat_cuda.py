"""Launchers of minifloat.cu.

See `gcodec.kernels.quantize.minifloat_tensor` and `minifloat.check`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import codes_nbytes, least_middles
from gcodec.kernels.quantize.minifloat_block import MOST_STEPS, per_byte
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks, word
from gcodec.runtime.deferred import Deferred, note
from gcodec.runtime.device import Device

_EACH = 8  # elements of a thread
_NONE = np.uint64((1 << 64) - 1)


def quantize(x: Any, scale: Any, fmt: MiniFloat) -> tuple[Any, Deferred]:
    """Return the codes of a tensor, and whether all are finite."""
    device, n = device_with(x), x.size
    out, top = device.empty(codes_nbytes(n, fmt), np.uint8), device.zeros(1, np.uint32)
    name, rule = _kernel("minifloat_codes", _Rule.of(device, scale, fmt), fmt)
    arguments = x.view(np.uint32), np.int64(n), *rule, out, top
    device.launch("minifloat", name, _blocks(n), THREADS, *arguments)
    return out, Deferred(device, top, lambda found: bool(found[0] < INFINITY_BITS))


def quantize_residual(
    x: Any, residual: Any, decay: np.float32, scale: Any, fmt: MiniFloat, left: Any
) -> Any:
    """Return the codes of u = x + decay·residual, and write u − x̂ to `left`."""
    device, n = device_with(x), x.size
    out = device.empty(codes_nbytes(n, fmt), np.uint8)
    made = _Rule.of(device, scale, fmt)
    name, rule = _kernel("minifloat_residual", made, fmt)
    what = *(a.view(np.uint32) for a in (x, residual, left)), np.int64(n), decay.view(np.uint32)
    device.launch("minifloat", name, _blocks(n), THREADS, *what, *rule, made.points, out)
    return out


def dequantize(
    codes: Any, scale: Any, fmt: MiniFloat, out: Any, add: np.float32 | None = None
) -> None:
    """Write what codes stand for, or add a multiple of it."""
    device, n = device_with(codes), out.size
    points = _Rule.of(device, scale, fmt).points
    what = codes, np.int64(n), np.bool_(per_byte(fmt) == 2), points
    where = () if add is None else (add.view(np.uint32),)
    name = "minifloat_values" if add is None else "minifloat_values_add"
    device.launch("minifloat", name, _blocks(n), THREADS, *what, *where, out.view(np.uint32))


def check(codes: Any, n: int, fmt: MiniFloat) -> None:
    """Raise `Corrupt` unless the bytes are n codes that stand for something."""
    device, pairs = device_with(codes), per_byte(fmt) == 2
    sign, top = 1 << fmt.width - 1, fmt.top
    first = device.to_device(np.array([_NONE]))
    held = np.int64(codes.size * per_byte(fmt)), np.bool_(pairs)
    rule = np.uint32(sign), np.uint32(top), first
    device.launch("minifloat", "any_wrong", _blocks(int(held[0])), THREADS, codes, *held, *rule)
    told = device.empty(9, np.uint8)
    told[:8] = first.view(np.uint8)
    told[8:] = codes[-1:] if codes.size else 0

    def checked(found: np.ndarray) -> None:
        at, last = int(found[:8].view(np.uint64)[0]), int(found[8])
        if at != int(_NONE):
            byte = int(device.to_host(codes[at // per_byte(fmt) :][:1])[0])
            code = byte if not pairs else byte & 15 if at % 2 else byte >> 4
            raise Corrupt(f"element {at} has the code {code:#x}, which is none")
        if pairs and n % 2 and last & 15:
            raise Corrupt("the half of a byte behind the last code is not zero", codes.size)

    note(device, told, checked)


class _Rule(NamedTuple):
    """What kernels look up of a scale, on the device.

    Attributes
    ----------
    told : array
        What tells codes.
    points : array
        What all bytes stand for.
    """

    told: Any
    points: Any

    @classmethod
    def of(cls, device: Device, scale: Any, fmt: MiniFloat) -> _Rule:
        """Make it of a scale, which maybe only the device knows."""
        middles, levels = _constants(fmt)
        made = cls(*(device.empty(size, np.uint32) for size in (MOST_STEPS + 1, 256)))
        steps = device.to_device(middles), np.int32(middles.size)
        sizes = device.to_device(levels), np.uint32(fmt.top), np.uint32(fmt.width)
        arguments = word(device, scale), *steps, *sizes, *made
        device.launch("minifloat", "make_rule", 1, THREADS, *arguments)
        return made


@functools.cache
def _constants(fmt: MiniFloat) -> tuple[np.ndarray, np.ndarray]:
    """Return what |x|/Δ must be above for each code, of formats of up to four bits, and levels."""
    pairs = per_byte(fmt) == 2
    return least_middles(fmt)[: MOST_STEPS * pairs], fmt.magnitudes().view(np.uint32)


def _kernel(name: str, rule: _Rule, fmt: MiniFloat) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a kernel, and what tells codes."""
    width = np.uint32(fmt.width)
    if per_byte(fmt) == 2:
        return f"{name}_pairs", (rule.told, width)
    return f"{name}_bytes", (rule.told, np.uint32(fmt.mantissa), np.uint32(fmt.top), width)


def _blocks(n: int) -> int:
    return striding_blocks(n, _EACH * THREADS)
