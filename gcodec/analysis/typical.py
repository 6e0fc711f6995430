"""Typical bits per value and nmse of each codec: measured with default parameters on the example.

`gcodec codecs` shows these numbers without compiling kernels. The test suite encodes the example
again and compares.
"""

from __future__ import annotations

from typing import NamedTuple

EXAMPLE = "a ResNet-8 gradient of 77,754 values in 29 tensors"
"""Contents of examples/resnet8_digits_step0300.safetensors."""


class Typical(NamedTuple):
    """The cost of a codec on the example, one named frame for each tensor.

    Attributes
    ----------
    bits : float
        Bits of whole frames per value.
    nmse : float
        The nmse over all tensors.
    """

    bits: float
    nmse: float


TYPICAL = {
    "raw": Typical(32.12, 0),
    "qsgd": Typical(0.93, 1.8),
    "mxnet-2bit": Typical(2.13, 1),
    "mxnet-1bit": Typical(1.12, 1.4e4),
    "terngrad": Typical(2.13, 0.9),
    "minmax": Typical(8.14, 1.2e-4),
    "sign": Typical(1.13, 0.5),
    "minifloat": Typical(3.42, 0.018),
    "topk": Typical(0.52, 0.83),
    "randomk": Typical(0.44, 0.99),
    "dct8": Typical(0.40, 0.68),
    "powersgd": Typical(3.77, 0.23),
    "ecsq": Typical(2.80, 0.02),
    "lowrank": Typical(1.50, 0.099),
    "lossless": Typical(26.78, 0),
    "microscale": Typical(8.37, 7.4e-4),
    "blockwise": Typical(4.62, 8.9e-3),
    "sparseloco": Typical(0.44, 0.51),
}
"""Typical cost by the name of the codec; codecs of other packages are missing."""
