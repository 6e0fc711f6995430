"""The kinds of `blockwise`, and where a payload with ``code=none`` has scales and codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.quantize import blockwise
from gcodec.kernels.quantize.value_table import ValueTable

KINDS = (*("nf4", "fp4", "dynamic8", "int8", "int4", "fp8", "uniform8", "quantile8"), "meanstd16")
ABSMAX = ("nf4", "fp4", "dynamic8")  # the scale of a block is its largest magnitude
TABLE_SENT = ("uniform8", "quantile8")
NESTED_BLOCK = 256  # of the scales of 4-bit blocks; those of dynamic8 have its own block size

_SENT_NBYTES = 4 * 256

Dequantize = Callable[..., None]
"""A function with the parameters of `blockwise.dequantize`."""


class Scales(NamedTuple):
    """What the codes of a payload are decoded with.

    Attributes
    ----------
    values : (16,) or (256,) float32 array
        Number of each code; empty where codes are numbers themselves.
    scales : (blocks,) float32 array
        Scale of each block.
    means : (blocks,) float32 array, optional
        Mean of each block, which is added to scaled numbers.
    """

    values: np.ndarray
    scales: np.ndarray
    means: np.ndarray | None = None


class Layout(NamedTuple):
    """The parts of a payload with ``code=none``.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    nested : bool
        Whether scales are codes of ``dynamic8`` themselves.
    n : int
        Number of elements.
    block : int
        Number of elements of a block.
    """

    kind: str
    nested: bool
    n: int
    block: int

    @property
    def width(self) -> int:
        """Number of bits of a code."""
        return {"nf4": 4, "fp4": 4, "int4": 4, "meanstd16": 16}.get(self.kind, 8)

    @property
    def has_means(self) -> bool:
        """Whether blocks have means, and codes are float16 numbers."""
        return self.kind == "meanstd16"

    @property
    def is_multiplier(self) -> bool:
        """Whether numbers are divided by the scale."""
        return self.kind == "fp8"

    @property
    def blocks(self) -> int:
        """Number of blocks, the last of which may be shorter."""
        return -(-self.n // self.block)

    @property
    def nested_block(self) -> int:
        """Number of scales that share a scale if they are nested."""
        return NESTED_BLOCK if self.width == 4 else self.block

    @property
    def outer_blocks(self) -> int:
        """Number of scales of nested scales."""
        return -(-self.blocks // self.nested_block)

    @property
    def front_nbytes(self) -> int:
        """Bytes before the codes."""
        if not self.n:
            return 0
        if self.kind in TABLE_SENT:
            return _SENT_NBYTES
        if self.has_means:
            return 8 * self.blocks
        return 4 + 4 * self.outer_blocks + self.blocks if self.nested else 4 * self.blocks

    @property
    def codes_nbytes(self) -> int:
        """Bytes of the codes."""
        return -(-self.n * self.width // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return self.front_nbytes + self.codes_nbytes

    def table(self) -> ValueTable:
        """Return the fixed table of a kind that has one."""
        return ValueTable.of(self.kind)

    def scales(self, front: np.ndarray, dequantize: Dequantize = blockwise.dequantize) -> Scales:
        """Read what precedes the codes.

        Parameters
        ----------
        front : (front_nbytes,) uint8 array
        dequantize : callable
            What decodes nested scales.

        Raises
        ------
        Corrupt
            If a number is not finite, or is a multiplier or deviation that is not above 0.
        """
        if not self.n:
            return Scales(np.zeros(256, np.float32), np.empty(0, np.float32))
        if self.kind in TABLE_SENT:
            values = _numbers(front)
            _require(np.isfinite(values), "the number of code", 0)
            return Scales(values, np.ones(1, np.float32))
        if self.has_means:
            numbers = _numbers(front)
            means, deviations = numbers.reshape(2, -1)
            is_valid = np.isfinite(numbers)
            is_valid[means.size :] &= deviations > 0
            _require(is_valid, "the number before the codes,", 0)
            return Scales(np.empty(0, np.float32), deviations, means)
        if not self.nested:
            scales = _numbers(front)
            is_valid = np.isfinite(scales)
            if self.is_multiplier:
                is_valid &= scales > 0
            _require(is_valid, "the scale of block", 0)
            return Scales(self.table().values, scales)
        outer_nbytes = 4 * self.outer_blocks
        numbers = _numbers(front[: 4 + outer_nbytes])
        _require(np.isfinite(numbers), "the number before the scales,", 0)
        scales = np.empty(self.blocks, np.float32)
        inner = front[4 + outer_nbytes :]
        values = ValueTable.of("dynamic8").values
        with np.errstate(over="ignore"):
            dequantize(inner, self.nested_block, numbers[1:], values, False, scales)
            scales += numbers[0]
        _require(np.isfinite(scales), "the scale of block", 4 + outer_nbytes)
        return Scales(self.table().values, scales)


def _numbers(data: np.ndarray) -> np.ndarray:
    return data.copy().view("<f4").astype(np.float32, copy=False)


def _require(is_valid: np.ndarray, name: str, first: int) -> None:
    if not is_valid.all():
        at = int(np.argmin(is_valid))
        raise Corrupt(f"{name} {at} is not valid", first + (at if first else 4 * at))
