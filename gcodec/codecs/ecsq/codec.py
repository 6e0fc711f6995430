"""ecsq: levels of a step, entropy-coded by what the scales of row and column lead to expect.

Rows of a gradient differ in scale, and so do its columns, by 20 to 1000 times. An integer for the
scale of each says more of an element than its neighbours do, and leaves all of them decodable in
any order. So levels are coded by rANS with a model for each of 64 classes, the sum of both scales;
and a level that its class does not expect is rounded down, where the bits saved are worth it.

Payload: nothing where all is zero; else the string of `gcodec.entropy.context.coder`. A symbol is
twice the level's magnitude k, plus 1 where it is negative. It stands for f32((k + d)·step), d
being (c − 128)/256 with c the centroid of k = 1, of k = 2 or of those above; or 0, without
centroids, where rounding is stochastic.

With a trellis (``trellis=yes``) the magnitude h of a symbol counts halves of a step, so that d is
of h = 1, of h = 2, or of those above. Two quantisers take turns, each of points a step apart: the
even h, and the odd ones and 0. Which is next depends on the states 0 to 3 of a path: behind the
level k = ⌈h/2⌉ of its quantiser, state s becomes (32040 >> 4·s + 2·(k mod 2)) mod 4; states 2 and
3 take the odd ones. The model of a symbol is that of its class and quantiser. Order: elements are
cut into runs of 2^16; in a run of m with L states of rANS, the symbols t·L + l are those of the
elements l·⌊m/L⌋ + t, t < ⌊m/L⌋, and what is left follows. In each run, the symbols of each state
of rANS are a path of their own, from 0 on. So points are twice as dense as those of which a model
chooses, which are closer in more dimensions; the levels are found by the algorithm of Viterbi.

With ``transform=dct`` levels are those of coefficients: of each filter of a convolution, the
orthonormal DCT-II along all axes of the tensor but the first two; see
`gcodec.codecs.ecsq.filter_transform`.

Arithmetic: see `kernels.scalar_quantize`, `kernels.trellis_search` and `kernels.small_transform`.
NaN and Inf are refused.

Source: gcodec's own; docs/ecsq.md says why it works. Entropy-coded scalar quantisation: T. Berger,
"Optimum quantizers and permutation codes", IEEE Trans. Information Theory 18, 1972; a scale per
row times one per column: N. Shazeer and M. Stern, "Adafactor", ICML 2018; a trellis: M. Marcellin
and T. Fischer, "Trellis coded quantization", IEEE Trans. Communications 38, 1990, with the states
of ITU-T H.266, 8.7; the transform: N. Ahmed, T. Natarajan and K. R. Rao, "Discrete cosine
transform", IEEE Trans. Computers 23, 1974.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec import Codec, register
from gcodec.codecs.ecsq import quantizer, rate_control, reconstruction
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.codecs.ecsq.quantizer import Quantizer
from gcodec.codecs.ecsq.rate_control import Target, about
from gcodec.codecs.ecsq.reconstruction import (
    CENTER,
    QuantizedLevels,
    Reconstruction,
    scalars_of,
    symbols_of,
)
from gcodec.codecs.ecsq.stochastic import StochasticQuantizer
from gcodec.codecs.ecsq.trellis import TrellisQuantizer
from gcodec.entropy.coder import BitSpan, EmptyString, Written, ignore, no_blocks
from gcodec.entropy.context import coder, symbol_coder, table_choice
from gcodec.entropy.context.coder import ContextString
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.errors import Corrupt, ParameterError
from gcodec.inspect.contexts import context_string
from gcodec.inspect.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.bit_string import BitString
from gcodec.payload import MissedTarget, Payload
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.memory import Drainable, drainable, empty_beside
from gcodec.wire.kinds import Choice, Float32, Integer, binary32
from gcodec.wire.params import Field, param
from gcodec.wire.seek import Blocks, SeekTable

_NMSE = 0.02
_TINY, _LIFT, _MOST = 2.0**-60, 2.0**64, 2.0**126  # what is moved, by what; a step far above it
_HUGE, _LOWER = 2.0**120, 2.0**-8  # what is moved down where levels are at random, and by what
_FINEST = 22  # octaves below the largest magnitude
_CENTROIDS = tuple(
    Field(f"centroid{k}", Integer(0, 255), f"of level {which}: 128, and 256ths of a step")
    for k, which in ((1, "1"), (2, "2"), (3, "3 and above"))
)


@register(id=13, name="ecsq")
class ECSQ(Codec):
    """Levels of a step, coded by the scales of their row and column.

    Parameters
    ----------
    rounding : {"nearest", "stochastic"}
        To the level that is best for bits and error together, or at random, unbiased.
    trellis : {"no", "yes"}
        Whether two quantisers take turns, as a trellis says: 5 to 8 percent fewer bits for the
        same error, found by a search that takes 4 to 12 times as long. Only to the nearest.
    step : float or "auto"
        Distance of levels, absolute; ``"auto"``: by one of the following.
    nmse : float
        Relative error ‖x − x̂‖²/‖x‖² that is met, within 2 % below it, from 0 to 1.
    bits : float
        Bits of the payload for each value, met in place of the error; 0: not.
    transform : {"auto", "none", "dct"}
        Of the taps of convolutions, which are all axes but the first two, into coefficients of
        which levels are taken. ``"auto"``: where that probably saves bits.
    strict : {"no", "yes"}
        Whether a target that a tensor cannot meet is an error. Else the tensor gets the nearest
        that it can have, and `gcodec.payload.Payload.missed` says so. Frames do not bear this.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    takes_up_to = 0.0  # a point may pass float32
    uses_shape = True

    rounding: str = param(
        Choice("nearest", "stochastic"), "nearest", "best for bits and error, or unbiased"
    )
    trellis: str = param(
        Choice("no", "yes"), "no", "two quantisers in turn: fewer bits, slower to encode"
    )
    step: float | str = param(
        Float32("a number, not negative", lambda step: 0 <= step < math.inf, words=("auto",)),
        "auto",
        "distance of levels; auto: what meets nmse or bits",
        in_message=True,
    )
    nmse: float = param(
        Float32("a number above 0 and below 1", lambda error: 0 < error < 1),
        _NMSE,
        "relative error that is met",
    )
    bits: float = param(
        Float32("a number from 0 to 32", lambda bits: 0 <= bits <= 32),
        0.0,
        "bits per value that are met, in place of the error; 0: not",
    )
    transform: str = param(
        Choice("none", "dct", unsent=("auto",)),
        "auto",
        "of the taps of convolutions; auto: where that saves bits",
        in_message=True,
        left_out="none",
    )
    strict: str = param(
        Choice("no", "yes"),
        "no",
        "whether a target that a tensor cannot meet is refused; else it gets the nearest",
        in_frame=False,
    )

    def check(self) -> None:
        """Refuse more than one way to choose the step, and targets of what is at random."""
        if self.step != "auto" and (self.nmse != _NMSE or self.bits):
            name = "bits" if self.bits else "nmse"
            raise ParameterError.of(name, getattr(self, name), "left out where step is given")
        if self.step != "auto" and self.strict == "yes":
            raise ParameterError.of("strict", self.strict, "no where step is given")
        if self._has_trellis and self.rounding == "stochastic":
            raise ParameterError.of("trellis", self.trellis, "no where rounding is stochastic")
        if self.bits and self.nmse != _NMSE:
            raise ParameterError.of("nmse", self.nmse, "left out where bits is given")

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the centroids, where rounding is to the nearest."""
        return _CENTROIDS if self.rounding == "nearest" else ()

    def of_message(self, values: Mapping[str, Any]) -> ECSQ:
        """Return the codec of a message, which has a step of its own, whatever was aimed at."""
        known = {name: value for name, value in values.items() if type(value) is not Deferred}
        told = {name: known[name] for name in ("step", "transform") if name in known}
        aims: dict[str, Any] = {}
        if self.nmse != _NMSE or self.bits or self.strict == "yes":
            aims = {"nmse": _NMSE, "bits": 0.0, "strict": "no"}
        return self.replaced(**aims, **told)

    @property
    def unbiased(self) -> bool:
        """True where rounding is stochastic."""
        return self.rounding == "stochastic"

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of as many exceptions, and of the longest lists and tables."""
        return symbol_coder.longest_nbits(n)

    @property
    def seek_blocks(self) -> Blocks:
        """States of rANS."""
        return "states"

    @property
    def uses_prior(self) -> bool:  # type: ignore[override]
        """Whether a step is looked for."""
        return self.step == "auto"

    def _quantize(
        self, values: np.ndarray, seed: int, prior: QuantizedLevels | None
    ) -> QuantizedLevels:
        taps = self._taps()
        if isinstance(self.step, float) and taps is None and self.transform != "dct":
            how = self._bound_shape(values.size), self._quantizer(seed)
            if (found := quantizer.levels_at(values, self.step, *how)) is not None:
                return found
        largest = reconstruction.largest(values)
        if not math.isfinite(largest):
            raise nonfinite_error(values)
        if self.transform == "dct" and taps is None:
            raise ParameterError.of("transform", "dct", f"none for the shape {self._shape}")
        if not largest:
            transform = "none" if self.transform == "auto" else self.transform
            return reconstruction.all_zeros(values.size, values)._replace(transform=transform)
        # Where inverses of steps would pass float32, all is moved by a power of two; or norms of
        # levels at random, and small ones may lose the bits that decide a level.
        lift = _LIFT if largest < _TINY else 1.0
        if largest >= _HUGE and self.rounding == "stochastic" and self.step == "auto":
            lift = _LOWER
        lifted = reconstruction.scaled(values, lift) if lift != 1 else values
        top = largest * lift
        taps, x = self._transformed(taps, lifted, lift, top)
        transform, period = ("none", 1) if taps is None else ("dct", taps.size)
        if taps is not None and not math.isfinite(top := reconstruction.largest(x)):
            raise ParameterError("x: must not pass float32 when it is transformed")
        if prior and (prior.transform, prior.symbols.size) != (transform, x.size):
            prior = None
        step, matrix, found = self._of_values(x, lift, top, seed, prior, period)
        found = found._replace(step=step, transform=transform)
        if self._is_finite(found, taps, top / lift):
            return found
        if self.step == "auto" and self.strict == "no":
            for nearest in self._finer(x, lift, top, seed, matrix, found):
                if self._is_finite(nearest, taps, top / lift):
                    return nearest
        raise ParameterError("x: must not pass float32 when it is decoded")

    def _is_finite(
        self, levels: QuantizedLevels, taps: FilterTransform | None, top: float
    ) -> bool:
        return self._points(levels.step, levels.centroids, taps).are_finite(levels, top)

    def _finer(
        self,
        x: np.ndarray,
        lift: float,
        top: float,
        seed: int,
        matrix: RowLayout,
        found: QuantizedLevels,
    ) -> Iterator[QuantizedLevels]:
        """Yield levels whose points pass the largest magnitude by less and less.

        Of steps that the largest magnitude is a multiple of, as it then may be a point itself.
        """
        way = quantizer.quantizer_for(x, self._quantizer(seed))
        yield found._replace(centroids=reconstruction.default_centroids())
        for octaves in range(_FINEST + 1):
            size = top * 2.0**-octaves
            if (step := size / lift) >= found.step:
                continue
            missed = found.missed
            if self.bits:
                missed = MissedTarget("bits", self.bits, way.nbits(x, size, matrix) / x.size)
            finer = way.quantize(x, size, matrix)._replace(
                step=binary32(step), transform=found.transform, missed=missed
            )
            yield finer
            yield finer._replace(centroids=reconstruction.default_centroids())

    def _transformed(
        self, taps: FilterTransform | None, values: np.ndarray, lift: float, top: float
    ) -> tuple[FilterTransform | None, np.ndarray]:
        """Return taps and coefficients if levels of these are to be sent, else None and values."""

        def step(some: np.ndarray) -> float:
            if isinstance(self.step, float):
                return self.step * lift
            return about(self.nmse, self.bits, some, top)

        if taps is None or self.transform == "dct":
            return taps, values if taps is None else taps.forward(values)
        found = taps.worthwhile_coefficients(values, top, lift, step)
        return (None, values) if found is None else (taps, found)

    def _of_values(
        self,
        x: np.ndarray,
        lift: float,
        top: float,
        seed: int,
        prior: QuantizedLevels | None,
        period: int,
    ) -> tuple[float, RowLayout, QuantizedLevels]:
        """Find a step and a matrix, and quantise what is finite, and not all 0."""
        shape, way = self._bound_shape(x.size), quantizer.quantizer_for(x, self._quantizer(seed))
        if isinstance(self.step, float):
            step, size = self.step, float(np.float32(self.step))
            size = min(size * lift, max(size, _MOST))
            rate_control.check_step(top, size)
            matrix, missed = rate_control.layout_for(x, size, shape), None
        else:
            target = Target(x, shape, way, lift, period, top, self.strict == "yes")
            search = target.step_for_bits if self.bits else target.step_for_error
            step, matrix, missed = search(self.bits or self.nmse, prior)
            size = float(np.float32(step)) * lift
        return step, matrix, way.quantize(x, size, matrix)._replace(missed=missed)

    def _quantizer(self, seed: int) -> Quantizer:
        if self.rounding == "stochastic":
            return StochasticQuantizer(seed)
        return TrellisQuantizer() if self._has_trellis else DeadZoneQuantizer()

    def _dequantize(self, symbols: QuantizedLevels, out: np.ndarray) -> None:
        taps = (
            None
            if symbols.transform == "none"
            else FilterTransform.of(self._bound_shape(out.size))
        )
        fits = symbols.symbols.size == out.size and (taps is None) == (symbols.transform == "none")
        self._require(fits, out.size)
        self._points(symbols.step, symbols.centroids, taps).put(symbols, out)

    # --- pack

    def _encode(self, values: np.ndarray, seed: int, prior: QuantizedLevels | None) -> Payload:
        symbols = self._quantize(values, seed, prior)
        return self._packed(symbols, drainable(symbols.symbols))  # which nobody else reads

    def _pack(self, symbols: QuantizedLevels) -> Payload:
        return self._packed(symbols, symbols.symbols)

    def _packed(self, symbols: QuantizedLevels, written: np.ndarray | Drainable) -> Payload:
        """Return the message of levels, given the array of their symbols, maybe a `Drainable`."""
        scalars = scalars_of(symbols, self.scalar_fields())
        codec = self.of_message(scalars)
        if symbols.on_device is not None:
            made = symbols.on_device.write()
        elif symbols.scales is None:
            made = Written(empty_beside(0, np.uint8, symbols.symbols), 0)
        else:
            plan = table_choice.plan(symbols.symbols, symbols.scales, lanes=symbols.lanes)
            made = coder.write(plan, written, symbols.outliers, BitString())
        payload, missed = Payload(codec, scalars, *made), symbols.missed
        if missed is not None and missed.parameter == "bits" and type(payload.nbits) is int:
            missed = missed._replace(reached=payload.nbits / symbols.symbols.size)  # exactly
        return payload._replace(missed=missed)

    # --- unpack

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        string = self._string(payload, n)
        values = empty_beside(n, np.float32, payload.data) if out is None else out
        return self._put(string, payload, 0, values)

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        string, taps = self._string(payload, n), self._taps()
        count = 1 if taps is None else taps.size
        first = start // count * count  # of whole filters
        values = empty_beside(-(-stop // count) * count - first, np.float32, None)
        return self._put(string, payload, first, values)[start - first : stop - first]

    def _put(
        self, string: ContextString | None, payload: Payload, start: int, values: np.ndarray
    ) -> np.ndarray:
        """Write the values from element `start` on, as many as there is room for."""
        if string is None or not values.size:
            values[:] = 0
        else:
            points = self._points(self._step(), self._centroids(payload), self._taps())
            points.read(string, start, values)
        return values

    def _unpack(self, payload: Payload, n: int) -> QuantizedLevels:
        string = self._string(payload, n)
        if string is None:
            return reconstruction.all_zeros(n, payload.data)._replace(transform=self.transform)
        out, beyond, places = symbols_of(string, n)
        told = self._centroids(payload), out, beyond, string.scales
        lanes = string.symbols.lanes if self._has_trellis else 0
        levels = QuantizedLevels(self._step(), *told, lanes, self.transform, places)
        if not self._points(levels.step, levels.centroids, self._taps()).are_finite(levels):
            raise Corrupt("a value passes float32")
        return levels

    @property
    def _has_trellis(self) -> bool:
        return self.trellis == "yes"

    def _points(
        self, step: float, centroids: np.ndarray, taps: FilterTransform | None
    ) -> Reconstruction:
        """Return what symbols stand for; they count steps, or with a trellis halves of them."""
        return Reconstruction.of(step, 2 if self._has_trellis else 1, centroids, taps)

    def _taps(self) -> FilterTransform | None:
        """Return the taps of the tensor; None where it has none, or is not to be transformed."""
        return (
            None
            if self._shape is None or self.transform == "none"
            else FilterTransform.of(self._shape)
        )

    def _told_taps(self) -> FilterTransform | None:
        if (taps := self._taps()) is None and self.transform == "dct":
            raise Corrupt(f"transform=dct of a tensor of the shape {self._shape}")
        return taps

    def _step(self) -> float:
        assert isinstance(self.step, float)
        return self.step

    def _centroids(self, payload: Payload) -> np.ndarray:
        given = [payload.scalars[field.name] for field in self.scalar_fields()]
        return np.array(given or [CENTER] * 3, np.uint8)

    def _string(self, payload: Payload, n: int) -> ContextString | None:
        """Check what can be told without reading symbols; None where all elements are 0."""
        span = BitSpan.of(payload)
        self._told_taps()
        if self._step() and n:
            return coder.open(span, n, with_trellis=self._has_trellis)
        EmptyString(span).read(ignore)
        return None

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        taps = self._told_taps()
        if step := self._step():
            tell = self._points(step, self._centroids(payload), taps).describe
            yield from context_string(walk, "level", "level", n, tell, self._has_trellis)
        walk.finish()

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        return 8 * data.size

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        string = self._string(payload, n)
        if string is None:
            return no_blocks(log2_block)
        return string.blocks(log2_block)
