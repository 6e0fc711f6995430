"""Numbers of kernels that commands need, for the message that announces a compilation.

``python tools/kernel_counts.py`` measures the numbers. They are those of float32 matrices of some
thousand values; other tensors need a few kernels more or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTS = {
    "raw": (1, 1),
    "qsgd": (6, 10),
    "qsgd:code=auto": (26, 31),
    "mxnet-2bit": (1, 3),
    "mxnet-2bit:form=auto": (26, 33),
    "mxnet-1bit": (1, 2),
    "terngrad": (3, 5),
    "minmax": (2, 3),
    "sign": (2, 3),
    "minifloat": (32, 39),
    "minifloat:code=none": (7, 9),
    "microscale": (2, 3),
    "microscale:format=nvfp4": (3, 4),
    "microscale:code=auto": (19, 26),
    "blockwise": (1, 2),
    "blockwise:code=auto": (9, 14),
    "blockwise:kind=meanstd16": (3, 4),
    "sparseloco": (14, 20),
    "topk": (11, 13),
    "randomk": (6, 7),
    "dct8": (9, 13),
    "powersgd": (4, 6),
    "ecsq": (26, 33),
    "ecsq:rounding=stochastic": (28, 34),
    "ecsq:trellis=yes": (35, 42),
}
"""Kernels that encode, and that encode and decode, by codec."""

CANDIDATES = 118
"""Kernels of ``gcodec inspect`` with a budget, which tries every codec."""


def expected(verb: str | None, parameters: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the number of kernels that a command needs, and the work that needs them.

    Parameters
    ----------
    verb : str or None
        Name of the command.
    parameters : mapping
        Its parameters by name.

    Returns
    -------
    (int, str) or None
        None if the number is unknown: the command reads frames of any codec, or has several.
    """
    if verb == "inspect" and (parameters["max_nmse"] or parameters["max_bits"]):
        return CANDIDATES, "trying all codecs"
    specs = parameters.get("specs") or [parameters.get("spec")]
    if len(specs) != 1 or specs[0] is None:
        return None
    name, _, text = specs[0].partition(":")
    settings = {name, *text.split(",")}
    fitting = [key for key in COUNTS if settings.issuperset(key.replace(":", ",").split(","))]
    if not fitting:
        return None
    return COUNTS[max(fitting, key=len)][verb != "encode"], name
