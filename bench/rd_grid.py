"""The settings in which `bench.rate_distortion` measures each codec.

A registered codec without settings here is an error, so that no codec is forgotten; a codec that
is listed here but not registered is not measured.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec.kernels.quantize.block_format import FORMATS

_USER_IDS = range(192, 256)  # ids of user-defined codecs

_RMS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11)
_LEVELS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 64, 127, 255)
_SHARES = (0.001, 0.003, 0.01, 0.03, 0.07, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1)
_TARGETS = (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.07, 0.05, 0.035, 0.02, 0.01, 0.005, 0.002, 0.001)
_TRELLIS_TARGETS = (0.5, 0.25, 0.1, 0.07, 0.035, 0.02, 0.01, 0.005)
_RANKS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 256, 512)
_SENT = tuple(1 << i for i in range(4, 13))  # elements of a tile
_FORMATS = ("e1m1", "e1m2", "e2m1", "e2m1,style=ieee", "e3m0", "e2m2", "e3m2", "e4m3", "e5m2")


class Dial(NamedTuple):
    """Settings of a codec that differ in one parameter.

    Attributes
    ----------
    spec : str
        Spec with ``{}`` in place of the value.
    values : tuple
        Values of the parameter.
    unit : {"", "rms", "√n"}
        Unit of the values: 1, the tensor's root mean square, or the root of its number of values,
        in
        which case the products are rounded to integers.
    between : bool
        Whether the parameter is continuous, so that bits may be interpolated between neighbors.
    """

    spec: str
    values: tuple[float | str, ...] = ("",)
    unit: str = ""
    between: bool = False

    def specs(self, x: np.ndarray) -> list[str]:
        """Return the specs for a tensor in the order of the values."""
        if not self.unit:
            return [self.spec.format(value) for value in self.values]
        if self.unit == "√n":
            levels = (max(1, round(float(v) * math.sqrt(x.size))) for v in self.values)
            return [self.spec.format(level) for level in levels]
        rms = math.sqrt(float((x.astype(np.float64) ** 2).mean())) or 1.0
        return [self.spec.format(f"{float(v) * rms:.6g}") for v in self.values]

    def described(self) -> str:
        """Return a Markdown description of the settings."""
        if self.values == ("",):
            return f"`{self.spec}`"
        unit = f" × {self.unit}" if self.unit else ""
        return f"`{self.spec.format('…')}` {', '.join(map(str, self.values))}{unit}"


GRID: dict[str, tuple[Dial, ...]] = {
    "raw": (Dial("raw:dtype={}", ("float32", "float16", "bfloat16")),),
    "qsgd": (
        Dial("qsgd:bucket=512,code=auto,s={}", _LEVELS, between=True),
        Dial("qsgd:bucket=512,norm=max,code=auto,s={}", _LEVELS, between=True),
        Dial(
            "qsgd:code=auto,s={}", (0.05, 0.1, 0.2, 0.4, 0.7, 1, 1.5, 2, 3, 5, 8, 16), "√n", True
        ),
    ),
    "mxnet-2bit": (
        Dial("mxnet-2bit:threshold=auto,form=auto,index=auto"),
        Dial("mxnet-2bit:form=auto,index=auto,threshold={}", _RMS, "rms", True),
    ),
    "mxnet-1bit": (Dial("mxnet-1bit"),),
    "terngrad": (
        Dial("terngrad:pack=rans,clip={}", (0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 10), between=True),
    ),
    "minmax": (
        Dial("minmax:bits={}", tuple(range(1, 9))),
        Dial("minmax:bucket=256,bits={}", tuple(range(1, 9))),
    ),
    "sign": (Dial("sign"),),
    "minifloat": (
        Dial("minifloat:format={}", _FORMATS),
        Dial("minifloat:block=32,format={}", _FORMATS),
        Dial("minifloat:scale={}", _RMS, "rms", True),
        Dial("minifloat:format=e1m2,scale={}", _RMS, "rms", True),
    ),
    "microscale": (
        Dial("microscale:code=auto,format={}", tuple(FORMATS)),
        Dial("microscale:scale=rceil,code=auto,format={}", tuple(FORMATS[:-1])),
    ),
    "blockwise": (
        Dial("blockwise:code=auto,kind={}", ("nf4", "fp4", "dynamic8", "int4", "int8", "fp8")),
        Dial("blockwise:nested=yes,code=auto,kind={}", ("nf4", "fp4")),
        Dial("blockwise:code=auto,kind={}", ("uniform8", "quantile8")),
    ),
    "sparseloco": (
        Dial("sparseloco:k={}", _SENT, between=True),
        Dial("sparseloco:bins=16,k={}", _SENT, between=True),
    ),
    "topk": (
        Dial("topk:value=sign,ratio={}", _SHARES, between=True),
        Dial("topk:value=int8,ratio={}", _SHARES, between=True),
        Dial("topk:value=bfloat16,ratio={}", _SHARES, between=True),
    ),
    "randomk": (
        Dial("randomk:value=int8,ratio={}", _SHARES, between=True),
        Dial("randomk:value=bfloat16,ratio={}", _SHARES, between=True),
    ),
    "dct8": (
        Dial("dct8:k={}", (8, 32, 128, 256, 512, 1024, 1536, 2048, 3072, 4096), between=True),
    ),
    "powersgd": (Dial("powersgd:rank={}", _RANKS),),
    "ecsq": (
        Dial("ecsq:nmse={}", _TARGETS, between=True),
        Dial("ecsq:trellis=yes,nmse={}", _TRELLIS_TARGETS, between=True),
    ),
    "lowrank": (
        Dial("lowrank:nmse={}", _TARGETS, between=True),
        Dial("lowrank:trellis=yes,nmse={}", _TRELLIS_TARGETS, between=True),
    ),
}


def grid() -> dict[str, tuple[Dial, ...]]:
    """Return the dials of each registered codec that may lose bits, by name.

    Raises
    ------
    LookupError
        If a registered codec has no dials.
    """
    names = [
        name
        for name, cls in gcodec.codecs().items()
        if cls.id not in _USER_IDS and not cls.keeps_every_bit
    ]
    if missing := [name for name in names if name not in GRID]:
        raise LookupError(f"{', '.join(missing)}: no settings in {__name__}.GRID")
    return {name: GRID[name] for name in names}
