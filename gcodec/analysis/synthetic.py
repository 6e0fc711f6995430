"""Drawn values in place of a dump: independent ones, or a matrix that is like a gradient.

`Gradient` has what codecs make use of in matrices of real gradients, and its constants are fitted
to these by ``python -m bench.gradient_fit DUMP…``: rows and columns of different scales, and a
spectrum that decays. Independent values have neither, so codecs cannot be judged on them that work
with rows, columns or a rank; see `gcodec.analysis.samples.doubt`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import interpolate, special

from gcodec.errors import ParameterError
from gcodec.kernels.numeric import philox, products
from gcodec.wire.kinds import Float64, Integer, Sizes
from gcodec.wire.params import Parameters, param, parse_spec

_PREFIX = "synthetic:"
_MOST = 2**31
_PART = 1 << 20  # values that are drawn at a time

# Of a gradient; all fitted. Standard deviations of the natural logarithms of scales: with what the
# components add to them, rows spread by 0.67 and columns by 0.33, as in real gradients.
ROW_SPREAD, COLUMN_SPREAD = 0.60, 0.15
RANKS, SHARES = (1, 4, 16, 48), (0.533, 0.159, 0.0422, 0.00208)
"""Ranks, and the share of the energy beyond each."""
BETA = 2.1  # of what 64 components leave over

_COMPONENTS = 64  # that are drawn as such; independent values have the energy of the rest
_ROWS, _COLUMNS, _LEFT, _RIGHT, _REST = range(32, 37)  # streams of random bits
_POINTS, _OCTAVES = 1 << 12, 32  # of the table of a distribution


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Synthetic(Parameters):
    """Values that are drawn."""

    def count(self) -> int:
        """Return how many values are drawn."""
        raise NotImplementedError

    def draw(self) -> np.ndarray:
        """Return the values, as float32."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GenNorm(Synthetic):
    """Independent values of the generalised normal distribution, with standard deviation 1.

    The density is β / (2αΓ(1/β)) exp(−|x/α|^β): normal for β = 2, Laplace for β = 1.
    """

    name = "gennorm"
    beta: float = param(
        Float64("a number from 0.1 to 100", lambda beta: 0.1 <= beta <= 100), 1.0, "the shape"
    )
    n: int = param(Integer(1, _MOST), 1 << 22, "how many values")
    seed: int = param(Integer(0, 2**64 - 1), 0, "of the random numbers")

    def count(self) -> int:
        """Return how many values are drawn."""
        return self.n

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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Gradient(Synthetic):
    """A matrix with scales of rows and columns, a decaying spectrum and a mean square of about 1.

    X = diag(r)·(Σ √eᵢ·uᵢ·vᵢᵀ + E)·diag(c): r and c are log-normal, u and v normal, and E has
    independent values of the generalised normal distribution. Each number depends on the seed and
    its own place only, so it does not depend on how many are drawn at a time.
    """

    name = "gradient"
    shape: tuple[int, ...] = param(
        Sizes(2, _MOST, _MOST), (1024, 1024), "rows and columns; of one size a vector"
    )
    seed: int = param(Integer(0, 2**64 - 1), 0, "of the random numbers")

    def count(self) -> int:
        """Return how many values are drawn."""
        return math.prod(self.shape)

    def draw(self) -> np.ndarray:
        """Return the float32 values in their shape; a vector is a matrix of one column."""
        m, k = self.shape if len(self.shape) == 2 else (*self.shape, 1)
        rows = self._scales(m, ROW_SPREAD, _ROWS)
        columns = self._scales(k, COLUMN_SPREAD, _COLUMNS)
        count = min(_COMPONENTS, m, k)
        energy, rest = _spectrum(count)
        left = self._normal(m, count, _LEFT) * np.sqrt(energy[:, np.newaxis]) * rows
        right = np.ascontiguousarray(self._normal(k, count, _RIGHT) * columns, np.float32)
        out = np.empty((m, k), np.float32)
        step = max(_PART // k, 1)
        for start in range(0, m, step):
            part = out[start : start + step]
            rows_left = np.ascontiguousarray(left[:, start : start + step], np.float32)
            products.put_product(rows_left, right, part.reshape(-1))
            if rest:
                scales = (rest * rows[start : start + step, np.newaxis]) * columns
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
        return np.asarray(special.ndtri((words + 0.5) / 2**32)).reshape(length, count).T

    def _independent(self, start: int, count: int) -> np.ndarray:
        """Return values from a place on of a generalised normal distribution of variance 1."""
        words = philox.words(self.seed, start, count, _REST)
        # The octave of how rarely a larger magnitude occurs, of 31 bits; the last one is the sign.
        octaves = -np.log2(((words >> 1) + 0.5) / 2**31)
        sizes = np.interp(octaves, np.linspace(0, _OCTAVES, _POINTS), _quantiles(BETA))
        return np.asarray(np.copysign(sizes, (words & 1) - 0.5))


def _spectrum(count: int) -> tuple[np.ndarray, float]:
    """Return the energies of the components and of the residual; their sum is 1."""
    # Monotone cubics through logarithms of shares and of ranks, and on as steeply as they end.
    x, y = np.log1p((0, *RANKS)), np.log((1, *SHARES))
    curve = interpolate.PchipInterpolator(x, y)
    at = np.log1p(np.arange(count + 1))
    inside = np.minimum(at, x[-1])
    shares = np.exp(curve(inside) + curve(x[-1], 1) * (at - inside))
    return -np.diff(shares), float(shares[-1])


def _quantiles(beta: float) -> np.ndarray:
    """Return the magnitudes that are passed with probability 2^−t, for t evenly from 0 on."""
    shape = 1 / beta
    rare = np.exp2(-np.linspace(0, _OCTAVES, _POINTS))
    alpha = math.exp((math.lgamma(shape) - math.lgamma(3 * shape)) / 2)
    return np.asarray(alpha * special.gammainccinv(shape, rare) ** shape)


def parse_synthetic(text: str) -> Synthetic:
    """Make the distribution that a source names.

    Parameters
    ----------
    text : str
        ``synthetic:gradient,shape=1024x4096,seed=1``, where ``gradient`` is optional; or
        independent values, ``synthetic:gennorm,beta=0.8,n=1000000,seed=1``.

    Raises
    ------
    ParameterError
    """
    if not text.startswith(_PREFIX):
        raise ParameterError.of("source", text, f"{_PREFIX}shape=ROWSxCOLUMNS, or a file")
    spec = text.removeprefix(_PREFIX)
    name, comma, values = spec.partition(",")
    if "=" in name:
        name, comma, values = Gradient.name, ",", spec
    known = {each.name: each for each in (Gradient, GenNorm)}
    return parse_spec("synthetic", f"{name}:{values}" if comma else name, Synthetic, known)
