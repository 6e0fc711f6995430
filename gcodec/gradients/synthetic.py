"""Values of a known distribution, in place of a dump."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kinds import Float64, Integer
from gcodec.params import Parameters, param, parse_spec

_PREFIX = "synthetic:"
_MOST = 2**31
_PART = 1 << 20  # values that are drawn at a time


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GenNorm(Parameters):
    """Independent values of the generalised normal distribution, with standard deviation 1.

    The density is β / (2αΓ(1/β)) exp(−|x/α|^β): normal for β = 2, Laplace for β = 1.
    """

    name = "gennorm"
    beta: float = param(
        Float64("a number from 0.1 to 100", lambda beta: 0.1 <= beta <= 100), 1.0, "the shape"
    )
    n: int = param(Integer(1, _MOST), 1 << 22, "how many values")
    seed: int = param(Integer(0, 2**64 - 1), 0, "of the random numbers")

    def draw(self) -> np.ndarray:
        """Return (n,) float32 values."""
        random = np.random.default_rng(self.seed)
        out = np.empty(self.n, np.float32)
        # σ² = α²·Γ(3/β) / Γ(1/β), and |x/α|^β has the Gamma distribution of shape 1/β.
        shape = 1 / self.beta
        log_alpha = (math.lgamma(shape) - math.lgamma(3 * shape)) / 2
        for start in range(0, self.n, _PART):
            part = out[start : start + _PART]
            with np.errstate(divide="ignore"):  # a Gamma number may be 0
                logs = np.log(random.standard_gamma(shape, part.size)) * shape + log_alpha
            part[:] = np.copysign(np.exp(logs), random.random(part.size) - 0.5)
        return out


def parse_synthetic(text: str) -> GenNorm:
    """Make the distribution that ``synthetic:gennorm,beta=0.8,n=1000000,seed=1`` names.

    Raises
    ------
    ParameterError
    """
    if not text.startswith(_PREFIX):
        raise ParameterError.of("source", text, f"{_PREFIX}gennorm, or a file")
    name, comma, values = text.removeprefix(_PREFIX).partition(",")
    spec = f"{name}:{values}" if comma else name
    return parse_spec("synthetic", spec, GenNorm, {"gennorm": GenNorm})
