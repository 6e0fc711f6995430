"""Parameters of codecs that search for the step that meets a target."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from gcodec.errors import ParameterError
from gcodec.runtime.deferred import Deferred
from gcodec.wire.kinds import Choice, Float32, Integer
from gcodec.wire.params import Field, Parameters, Scalars, param

_P = TypeVar("_P", bound=Parameters)

CENTROIDS = tuple(
    Field(f"centroid{k}", Integer(0, 255), f"128 plus the offset of {levels} in 256ths of a step")
    for k, levels in ((1, "level 1"), (2, "level 2"), (3, "levels from 3 on"))
)


def trellis() -> Any:
    """Declare whether a trellis selects the levels."""
    doc = "alternating quantizers: fewer bits, slower to encode"
    return param(Choice("no", "yes"), "no", doc)


def step() -> Any:
    """Declare the distance of levels."""
    allowed = "a finite number from 0 on"
    kind = Float32(allowed, lambda step: 0 <= step < math.inf, words=("auto",))
    return param(
        kind, "auto", "distance of levels; auto: what meets nmse or bits", in_message=True
    )


def nmse(default: float) -> Any:
    """Declare the target for the error."""
    kind = Float32("a number above 0 and below 1", lambda error: 0 < error < 1)
    return param(kind, default, "target for the normalized error |x - decoded|^2/|x|^2")


def bits() -> Any:
    """Declare the target for the bits, which replaces that for the error."""
    kind = Float32("a number above 0, up to 32", lambda bits: 0 < bits <= 32, unset=0.0)
    return param(kind, 0.0, "target for the bits per value, instead of an error")


def transform(doc: str) -> Any:
    """Declare the transform of convolution filters."""
    kind = Choice("none", "dct", unsent=("auto",))
    return param(kind, "auto", doc, in_message=True, left_out="none")


def of_message(codec: _P, values: Scalars, **untargeted: object) -> _P:
    """Return the codec of a message: with its step and transform, and without targets.

    `untargeted` contains the values of the parameters of targets where there is no target.
    """
    replaced = {name: value for name, value in untargeted.items() if getattr(codec, name) != value}
    for name in ("step", "transform"):
        if name in values and type(values[name]) is not Deferred:
            replaced[name] = values[name]
    return codec.replaced(**replaced)


def check_targets(step: float | str, nmse: float, default: float, bits: float) -> None:
    """Raise `ParameterError` if two are given of a step, an error and a number of bits."""
    if step != "auto" and bits:
        raise ParameterError.of("bits", bits, "left out where step is given")
    if nmse != default and (bits or step != "auto"):
        other = "bits" if step == "auto" else "step"
        raise ParameterError.of("nmse", nmse, f"left out where {other} is given")
