"""Random values in place of a dump: independent values, or a matrix that resembles a gradient.

`Gradient` has the properties of real gradients that codecs exploit: rows and columns of different
scales, and a decaying spectrum. ``python -m bench.gradient_fit DUMP…`` fitted its constants.
Independent values have neither property, so they say little about codecs that work with rows,
columns or a rank; see `gcodec.analysis.samples.doubt`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from gcodec.errors import ParameterError
from gcodec.kernels.numeric import philox, products
from gcodec.wire.kinds import Float64, Integer, Sizes
from gcodec.wire.params import Parameters, param, parse_spec

_PREFIX = "synthetic:"
_MAX_SIZE = 2**31
_CHUNK = 1 << 20  # number of values that are drawn at a time

# The following constants of `Gradient` are fitted to real gradients.
ROW_SPREAD, COLUMN_SPREAD = 0.60, 0.15
"""Standard deviations of the natural logarithms of the scales of rows and columns.

The components add to them: rows spread by 0.67 in all and columns by 0.33.
"""
RANKS, SHARES = (1, 4, 16, 48), (0.533, 0.159, 0.0422, 0.00208)
"""Ranks, and the share of the energy beyond each."""
BETA = 2.1
"""Shape of the distribution of the residual of 64 components."""

_COMPONENTS = 64  # number of explicit components; the residual is independent values
_ROWS, _COLUMNS, _LEFT, _RIGHT, _RESIDUAL = range(32, 37)  # streams of random bits
_POINTS, _OCTAVES = 1 << 12, 32  # size of the table of quantiles, and its range


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Synthetic(Parameters):
    """Base of the sources of random values."""

    def count(self) -> int:
        """Return the number of values."""
        raise NotImplementedError

    def draw(self) -> np.ndarray:
        """Return the values, as float32."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GenNorm(Synthetic):
    """Independent values of the generalized normal distribution, with standard deviation 1.

    The density is β / (2αΓ(1/β)) exp(−|x/α|^β): normal for β = 2, Laplace for β = 1.
    """

    name = "gennorm"
    beta: float = param(
        Float64("a number from 0.1 to 100", lambda beta: 0.1 <= beta <= 100), 1.0, "the shape"
    )
    n: int = param(Integer(1, _MAX_SIZE), 1 << 22, "number of values")
    seed: int = param(Integer(0, 2**64 - 1), 0, "seed of the random numbers")

    def count(self) -> int:
        """Return the number of values."""
        return self.n

    def draw(self) -> np.ndarray:
        """Return (n,) float32 values."""
        random = np.random.default_rng(self.seed)
        out = np.empty(self.n, np.float32)
        # σ² = α²·Γ(3/β) / Γ(1/β), and |x/α|^β has the Gamma distribution of shape 1/β.
        shape = 1 / self.beta
        log_alpha = (math.lgamma(shape) - math.lgamma(3 * shape)) / 2
        for start in range(0, self.n, _CHUNK):
            part = out[start : start + _CHUNK]
            with np.errstate(divide="ignore"):  # a Gamma variate may be 0
                logs = np.log(random.standard_gamma(shape, part.size)) * shape + log_alpha
            part[:] = np.copysign(np.exp(logs), random.random(part.size) - 0.5)
        return out


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Gradient(Synthetic):
    """A matrix with scales of rows and columns, a decaying spectrum and a mean square of about 1.

    X = diag(r)·(Σ √eᵢ·uᵢ·vᵢᵀ + E)·diag(c): r and c are log-normal, u and v normal, and E has
    independent values of the generalized normal distribution. Each number depends only on the seed
    and its own position, not on the number of values that are drawn at a time.
    """

    name = "gradient"
    shape: tuple[int, ...] = param(
        Sizes(2, _MAX_SIZE, _MAX_SIZE),
        (1024, 1024),
        "rows and columns; one size makes a vector",
    )
    seed: int = param(Integer(0, 2**64 - 1), 0, "seed of the random numbers")

    def count(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    def draw(self) -> np.ndarray:
        """Return the float32 values in their shape; a vector is a matrix of one column."""
        m, k = self.shape if len(self.shape) == 2 else (*self.shape, 1)
        rows = self._scales(m, ROW_SPREAD, _ROWS)
        columns = self._scales(k, COLUMN_SPREAD, _COLUMNS)
        count = min(_COMPONENTS, m, k)
        energy, residual = _spectrum(count)
        left = self._normal(m, count, _LEFT) * np.sqrt(energy[:, np.newaxis]) * rows
        right = np.ascontiguousarray(self._normal(k, count, _RIGHT) * columns, np.float32)
        out = np.empty((m, k), np.float32)
        step = max(_CHUNK // k, 1)
        for start in range(0, m, step):
            part = out[start : start + step]
            left_part = np.ascontiguousarray(left[:, start : start + step], np.float32)
            products.put_product(left_part, right, part.reshape(-1))
            if residual:
                scales = (residual * rows[start : start + step, np.newaxis]) * columns
                part += scales * self._independent(start * k, part.size).reshape(part.shape)
        return out.reshape(self.shape)

    def _scales(self, count: int, spread: float, stream: int) -> np.ndarray:
        """Return log-normal scales with a mean square of 1; a single one is 1."""
        scales: np.ndarray = np.exp(spread * self._normal(count, 1, stream)[0])
        scales /= math.sqrt(float(np.square(scales).mean()))
        return scales

    def _normal(self, length: int, count: int, stream: int) -> np.ndarray:
        """Return (count, length) float64 normal numbers."""
        words = philox.words(self.seed, 0, count * length, stream)
        drawn: np.ndarray = special.ndtri((words + 0.5) / 2**32)
        return drawn.reshape(length, count).T

    def _independent(self, start: int, count: int) -> np.ndarray:
        """Return generalized normal values of variance 1, from position `start` on."""
        words = philox.words(self.seed, start, count, _RESIDUAL)
        # 31 bits give −log2 of the probability of larger magnitudes; the last bit is the sign.
        octaves = -np.log2(((words >> 1) + 0.5) / 2**31)
        sizes = np.interp(octaves, np.linspace(0, _OCTAVES, _POINTS), _quantiles(BETA))
        return np.copysign(sizes, (words & 1) - 0.5)


def _spectrum(count: int) -> tuple[np.ndarray, float]:
    """Return the energies of the components and of the residual; their sum is 1."""
    from scipy import interpolate  # loads many modules, which only synthetic values need

    # Monotone cubics interpolate the logarithms of the shares; beyond the last rank the curve
    # continues with its final slope.
    x, y = np.log1p((0, *RANKS)), np.log((1, *SHARES))
    curve = interpolate.PchipInterpolator(x, y)
    at = np.log1p(np.arange(count + 1))
    inside = np.minimum(at, x[-1])
    shares = np.exp(curve(inside) + curve(x[-1], 1) * (at - inside))
    return -np.diff(shares), float(shares[-1])


def _quantiles(beta: float) -> np.ndarray:
    """Return the magnitudes with exceedance probability 2^−t, for evenly spaced t from 0 on."""
    shape = 1 / beta
    rare = np.exp2(-np.linspace(0, _OCTAVES, _POINTS))
    alpha = math.exp((math.lgamma(shape) - math.lgamma(3 * shape)) / 2)
    return alpha * special.gammainccinv(shape, rare) ** shape


def parse_synthetic(text: str) -> Synthetic:
    """Return the synthetic values that a source names.

    Parameters
    ----------
    text : str
        ``synthetic:gradient,shape=1024x4096,seed=1``, where ``gradient`` is optional; or
        ``synthetic:gennorm,beta=0.8,n=1000000,seed=1`` for independent values.

    Raises
    ------
    ParameterError
        If the text names no source, or a parameter is invalid.
    """
    if not text.startswith(_PREFIX):
        raise ParameterError.of("source", text, f"{_PREFIX}shape=ROWSxCOLUMNS, or a file")
    spec = text.removeprefix(_PREFIX)
    name, comma, values = spec.partition(",")
    if "=" in name:
        name, comma, values = Gradient.name, ",", spec
    sources = {source.name: source for source in (Gradient, GenNorm)}
    return parse_spec("synthetic", f"{name}:{values}" if comma else name, Synthetic, sources)
