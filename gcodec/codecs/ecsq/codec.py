"""The codec ecsq: levels of a uniform quantizer, coded by the scales of their rows and columns.

Rows of a gradient differ in scale by factors of 20 to 1000, and so do its columns. One integer
scale for each row and one for each column predict the magnitude of an element better than its
neighbors do, and elements stay decodable in any order. rANS codes a level with one of 64 models;
the sum of both scales selects the model. The quantizer rounds a level toward zero where the saved
bits are worth the additional error.

Payload: the string of `gcodec.entropy.context.coder`; no bits if all values are 0. A symbol is
twice the magnitude k of a level, plus 1 if the level is negative. It decodes to f32((k + d)·step)
with d = (c − 128)/256, where c is the centroid of k = 1, of k = 2, or of all larger k; k = 0
decodes to 0. With stochastic rounding there are no centroids, and d = 0.

With a trellis (``trellis=yes``), the magnitude h of a symbol counts halves of a step, and d
belongs to h = 1, to h = 2, or to all larger h. Two quantizers alternate, each with points a step
apart: quantizer 0 has the even h, quantizer 1 has 0 and the odd h. A path of states 0 to 3 selects
the quantizer; states 2 and 3 select quantizer 1. After the level k = ⌈h/2⌉ of its quantizer, state
s becomes (32040 >> 4·s + 2·(k mod 2)) mod 4. The class and the quantizer select the model.

The coding order cuts elements into runs of 2^16. In a run of m elements with L rANS lanes, symbol
t·L + l is that of element l·⌊m/L⌋ + t for t < ⌊m/L⌋, and the remaining elements follow. In each
run, the symbols of each lane form a path that begins with state 0. The points of both quantizers
together are half a step apart, but a model distinguishes only the points of one quantizer. The
Viterbi algorithm finds the levels.

With ``transform=dct``, the levels are those of coefficients: the orthonormal DCT-II of each
convolution filter along all axes of the tensor but the first two; see
`gcodec.codecs.ecsq.filter_transform`.

Arithmetic: see `scalar_quantize` and `trellis_search` in `gcodec.kernels.quantize`, and
`gcodec.kernels.transform.small_transform`. The encoder refuses NaN and Inf.

Source: gcodec's own; docs/ecsq.md explains why it works. Entropy-coded scalar quantization:
T. Berger, "Optimum quantizers and permutation codes", IEEE Trans. Information Theory 18, 1972; a
scale per row times one per column: N. Shazeer and M. Stern, "Adafactor", ICML 2018; a trellis:
M. Marcellin and T. Fischer, "Trellis coded quantization", IEEE Trans. Communications 38, 1990,
with the states of ITU-T H.266, 8.7; the transform: N. Ahmed, T. Natarajan and K. R. Rao, "Discrete
cosine transform", IEEE Trans. Computers 23, 1974.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec import Codec, register
from gcodec.codecs.ecsq import rate_control, reconstruction
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.codecs.ecsq.quantizer import Quantizer, levels_at, quantizer_for
from gcodec.codecs.ecsq.rate_control import Target
from gcodec.codecs.ecsq.reconstruction import (
    LARGEST_OUTLIER,
    QuantizedLevels,
    Reconstruction,
)
from gcodec.codecs.ecsq.stochastic import StochasticQuantizer
from gcodec.codecs.ecsq.trellis import TrellisQuantizer
from gcodec.entropy.coder import BitSpan, EmptyString, Written, ignore, into, no_blocks
from gcodec.entropy.context import coder, models, symbol_coder, table_choice
from gcodec.entropy.context.coder import ContextString
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.contexts import context_string
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.computed_symbols import ComputedSymbols
from gcodec.kernels.numeric.arithmetic import (
    ResidualUpdate,
    ValueStatistics,
    add_residual_with_moments,
)
from gcodec.kernels.numeric.convert import whole
from gcodec.kernels.numeric.reduce import float_of_bits, moments
from gcodec.kernels.numeric.scatter import replace
from gcodec.kernels.quantize.scalar_quantize import (
    CENTER,
    add_residual_plainly,
    plain_levels_and_top,
)
from gcodec.kernels.rans.rans_vector import CLASSED_LANES
from gcodec.payload import MissedTarget, Payload
from gcodec.runtime.deferred import Deferred, map_deferred
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import Drainable, drainable, empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire import targets
from gcodec.wire.kinds import Choice, binary32
from gcodec.wire.params import Field, Scalars, param
from gcodec.wire.seek import Blocks, SeekTable

_NMSE = 0.02
# Elements of 16 bits up to which converting all at once takes less time than converting them in
# each pass over them.
_FEW = 1 << 25
_TINY, _LIFT = 2.0**-60, 2.0**64  # values below _TINY are multiplied by _LIFT
_HUGE, _LOWER = 2.0**120, 2.0**-8  # values from _HUGE on by _LOWER, with stochastic rounding
_MOST = 2.0**126  # a step far above all lifted values
_FINEST = 22  # octaves of the finest step below the largest magnitude


@register(id=13, name="ecsq")
class ECSQ(Codec):
    """Context-coded levels: fewest bits at an error.

    Parameters
    ----------
    rounding : {"nearest", "stochastic"}
        ``"nearest"`` selects the level with the best balance of bits and error. ``"stochastic"``
        rounds at random, which makes the codec unbiased.
    trellis : {"no", "yes"}
        Whether two quantizers alternate along a trellis. This takes 5 to 8 percent fewer bits at
        the same error, and the search takes 4 to 12 times as long. Requires ``"nearest"``.
    step : float or "auto"
        Absolute distance of levels. ``"auto"`` searches for the step that meets `nmse` or `bits`.
    nmse : float
        Target for the normalized error ‖x − x̂‖²/‖x‖², between 0 and 1. The encoder ends within 2 %
        below the target. The error is that of float32; rounding x̂ to bfloat16 adds about 3e-6.
    bits : float
        Target for the bits of the payload per value, instead of an error. 0.0 stands for none; a
        spec leaves it out.
    transform : {"auto", "none", "dct"}
        Transform of the taps of convolution filters, which are all axes but the first two.
        ``"auto"`` transforms a tensor if that probably saves bits.
    strict : {"no", "yes"}
        Whether a target that a tensor cannot meet raises an error. Otherwise the encoder comes as
        near as it can, and `gcodec.payload.Payload.missed` reports it. Frames do not store this
        parameter.
    """

    symbols_type = QuantizedLevels
    symbols_dtypes: ClassVar = {"symbols": ("uint8",), "outliers": ("int64",)}
    refuses_nonfinite = True
    reads_segments = True
    has_cuda_kernels = True
    takes_up_to = 0.0  # a point may exceed float32
    bounds_decoded = True
    uses_shape = True

    rounding: str = param(
        Choice("nearest", "stochastic"),
        "nearest",
        "to the level that is best for bits and error, or stochastically, which is unbiased",
    )
    trellis: str = targets.trellis()
    step: float | str = targets.step()
    nmse: float = targets.nmse(_NMSE)
    bits: float = targets.bits()
    transform: str = targets.transform("transform of convolution filters; auto: if it saves bits")
    strict: str = param(
        Choice("no", "yes"),
        "no",
        "whether a target that a tensor cannot meet is an error; else the nearest is met",
        in_frame=False,
    )

    def check(self) -> None:
        """Refuse contradictory targets, and a trellis with stochastic rounding."""
        targets.check_targets(self.step, self.nmse, _NMSE, self.bits)
        if self.step != "auto" and self.strict == "yes":
            raise ParameterError.of("strict", self.strict, "no where step is given")
        if self._has_trellis and self.rounding == "stochastic":
            raise ParameterError.of("trellis", self.trellis, "no where rounding is stochastic")

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the fields of the centroids, which stochastic rounding does not have."""
        return targets.CENTROIDS if self.rounding == "nearest" else ()

    def of_message(self, values: Scalars) -> ECSQ:
        """Return the codec of a message: with its step and transform, and without targets."""
        return targets.of_message(self, values, nmse=_NMSE, bits=0.0, strict="no")

    @property
    def unbiased(self) -> bool:
        """Whether rounding is stochastic."""
        return self.rounding == "stochastic"

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of a payload of n outliers with the longest lists and tables."""
        return symbol_coder.longest_nbits(n)

    @property
    def seek_blocks(self) -> Blocks:
        """Blocks with rANS states."""
        return "states"

    @property
    def uses_prior(self) -> bool:  # type: ignore[override]
        """Whether the encoder searches for a step."""
        return self.step == "auto"

    @property
    def _has_trellis(self) -> bool:
        return self.trellis == "yes"

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: QuantizedLevels | None
    ) -> QuantizedLevels:
        return self._levels(values, seed, prior)

    def _levels(
        self,
        values: np.ndarray,
        seed: int,
        prior: QuantizedLevels | None,
        *,
        narrow: bool = False,
    ) -> QuantizedLevels:
        """Quantize values; many symbols may be `NarrowSymbols` if `narrow`."""
        statistics = None
        if values.size <= _FEW:
            values = whole(values)
        if self._begins_plainly and values.size and device_of(values) is None:
            plain = np.empty(values.size, np.uint8)
            top_bits = plain_levels_and_top(values, np.float32(self.step), plain)
            statistics = ValueStatistics(top_bits, plain=plain)
        elif self._seeks_error and device_of(values) is None:
            known = moments(values)
            statistics = ValueStatistics(known.largest, moments=known)
        return self._quantize_with_statistics(values, statistics, seed, prior, narrow=narrow)

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        if self._seeks_error:
            return add_residual_with_moments(x, update)
        if not (self._begins_plainly and x.size):
            return super()._add_residual(x, update)
        plain = empty_beside(x.size, np.uint8, x)
        top_bits = add_residual_plainly(x, update, np.float32(self.step), plain)
        return ValueStatistics(top_bits, plain=plain)

    @property
    def _begins_plainly(self) -> bool:
        """Whether the first levels that the quantizer needs are the plain ones of a known step."""
        is_nearest = self.rounding == "nearest" and not self._has_trellis
        return is_nearest and self._keeps_step and bool(self.step)

    @property
    def _seeks_error(self) -> bool:
        """Whether the step is chosen by the error, which needs the energy of the values."""
        return self.step == "auto" and not self.bits

    @property
    def _keeps_step(self) -> bool:
        """Whether the step is known, and the tensor surely is not transformed."""
        is_fixed = isinstance(self.step, float) and self.transform != "dct"
        return is_fixed and self._filter_transform() is None

    def _quantize_with_statistics(
        self,
        values: np.ndarray,
        statistics: ValueStatistics | None,
        seed: int,
        prior: QuantizedLevels | None,
        *,
        narrow: bool = False,
    ) -> QuantizedLevels:
        transform = self._filter_transform()
        if self._keeps_step:
            assert isinstance(self.step, float)
            shape = self._bound_shape(values.size)
            levels = levels_at(values, self.step, shape, self._quantizer(seed))
            if levels is not None:
                return levels
        if statistics is None:
            largest = reconstruction.largest(values)
        else:
            largest = float_of_bits(statistics.top_bits)
        if not math.isfinite(largest):
            raise nonfinite_error(values)
        if self.transform == "dct" and transform is None:
            raise ParameterError.of("transform", "dct", f"none for the shape {self._shape}")
        if transform is not None:
            values = whole(values)
        if not largest:
            name = "none" if self.transform == "auto" else self.transform
            return reconstruction.all_zeros(values.size, values)._replace(transform=name)
        lift = self._lift_of(largest)
        x = reconstruction.scaled(values, lift) if lift != 1 else values
        top = largest * lift
        transform, x = self._transformed(transform, x, lift, top)
        name, period = ("none", 1) if transform is None else ("dct", transform.size)
        if transform is not None and not math.isfinite(top := reconstruction.largest(x)):
            raise ParameterError("x: must not exceed float32 when it is transformed")
        if prior and (prior.transform, prior.symbols.size) != (name, x.size):
            prior = None
        known = statistics if statistics is not None and x is values else ValueStatistics(0)
        quantizer = quantizer_for(x, self._quantizer(seed, known.plain, narrow=narrow))
        energy = known.moments and known.moments.squares
        layout, levels = self._quantize_lifted(x, lift, top, energy, quantizer, prior, period)
        levels = levels._replace(transform=name)
        candidates = iter([levels])
        if self.step == "auto" and self.strict == "no":
            candidates = self._with_finer_steps(x, lift, top, seed, layout, levels)
        for candidate in candidates:
            points = self._reconstruction(candidate.step, candidate.centroids, transform)
            if points.are_finite(candidate, top / lift):
                return candidate
        raise ParameterError("x: must not exceed float32 when it is decoded")

    def _lift_of(self, largest: float) -> float:
        """Return a power of two by which all values are multiplied before they are quantized.

        It keeps inverses of steps within float32. With stochastic rounding it does so for norms
        too, although small values may then lose bits.
        """
        if largest >= _HUGE and self.rounding == "stochastic" and self.step == "auto":
            return _LOWER
        return _LIFT if largest < _TINY else 1.0

    def _transformed(
        self, transform: FilterTransform | None, x: np.ndarray, lift: float, top: float
    ) -> tuple[FilterTransform | None, np.ndarray]:
        """Return the transform and the coefficients if coding these is better, or None and x."""

        def approximate_step(sample: np.ndarray) -> float:
            if isinstance(self.step, float):
                return self.step * lift
            return rate_control.approximate_step(self.nmse, self.bits, sample, top)

        if transform is None:
            return None, x
        if self.transform == "dct":
            return transform, transform.forward(x)
        coefficients = transform.worthwhile_coefficients(x, top, lift, approximate_step)
        return (None, x) if coefficients is None else (transform, coefficients)

    def _quantize_lifted(
        self,
        x: np.ndarray,
        lift: float,
        top: float,
        energy: float | None,
        quantizer: Quantizer,
        prior: QuantizedLevels | None,
        period: int,
    ) -> tuple[RowLayout, QuantizedLevels]:
        """Choose a step and a row layout, and quantize finite lifted values that are not all 0.

        `top` is the largest of their magnitudes, and `energy` the sum of their squares, if it is
        known. See `Target` for `lift` and `period`.
        """
        shape = self._bound_shape(x.size)
        if isinstance(self.step, float):
            step, exact = self.step, float(np.float32(self.step))
            lifted_step = min(exact * lift, max(exact, _MOST))  # a float32, above all values
            rate_control.check_step(top, lifted_step)
            layout, missed = rate_control.layout_for(x, lifted_step, shape), None
        else:
            is_strict = self.strict == "yes"
            target = Target(x, shape, quantizer, lift, period, top, is_strict, energy)
            search = target.step_for_bits if self.bits else target.step_for_error
            step, layout, missed = search(self.bits or self.nmse, prior)
            lifted_step = float(np.float32(step)) * lift
        levels = quantizer.quantize(x, lifted_step, layout)
        return layout, levels._replace(step=step, missed=missed)

    def _with_finer_steps(
        self,
        x: np.ndarray,
        lift: float,
        top: float,
        seed: int,
        layout: RowLayout,
        levels: QuantizedLevels,
    ) -> Iterator[QuantizedLevels]:
        """Yield levels, then others whose points exceed the largest magnitude by less and less.

        The largest magnitude is a multiple of each finer step, and may thus be a point itself. See
        `_quantize_lifted` for the arguments.
        """
        yield levels
        yield levels._replace(centroids=reconstruction.default_centroids())
        quantizer = quantizer_for(x, self._quantizer(seed))
        for octaves in range(_FINEST + 1):
            lifted_step = top * 2.0**-octaves
            if (step := lifted_step / lift) >= levels.step:
                continue
            missed = levels.missed
            if self.bits:
                reached = quantizer.nbits(x, lifted_step, layout) / x.size
                missed = MissedTarget("bits", self.bits, reached)
            finer = quantizer.quantize(x, lifted_step, layout)._replace(
                step=binary32(step), transform=levels.transform, missed=missed
            )
            yield finer
            yield finer._replace(centroids=reconstruction.default_centroids())

    def _quantizer(
        self, seed: int, plain: np.ndarray | None = None, *, narrow: bool = False
    ) -> Quantizer:
        """Return the quantizer; `plain` has the plain levels of the values, if they are known."""
        if self.rounding == "stochastic":
            return StochasticQuantizer(seed, narrow)
        return TrellisQuantizer() if self._has_trellis else DeadZoneQuantizer(plain, narrow=narrow)

    def _dequantize(self, symbols: QuantizedLevels, out: np.ndarray) -> None:
        transform = self._possible_transform() if symbols.transform != "none" else None
        is_possible = (transform is None) == (symbols.transform == "none")
        self._require(symbols.symbols.size == out.size and is_possible, out.size)
        self._reconstruction(symbols.step, symbols.centroids, transform).put(symbols, out)

    def _dequantize_add(
        self, symbols: QuantizedLevels, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        points = self._addable(symbols, out)
        if points is None:
            super()._dequantize_add(symbols, dtype, scale, out)
        else:
            points.add(symbols, dtype, scale, out)

    def _dequantize_scaled(
        self, symbols: QuantizedLevels, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        points = self._addable(symbols, out)
        if points is None:
            super()._dequantize_scaled(symbols, dtype, scale, out)
        else:
            points.put_scaled(symbols, dtype, scale, out)

    def _addable(self, symbols: QuantizedLevels, out: np.ndarray) -> Reconstruction | None:
        """Return the map from symbols to values if one pass can add these to `out`, else None."""
        if symbols.transform != "none" or device_of(out) is not None:
            return None
        self._require(symbols.symbols.size == out.size, out.size)
        return self._reconstruction(symbols.step, symbols.centroids, None)

    def _decoded_bound(self, symbols: QuantizedLevels, largest: float) -> float:
        step: Any = symbols.step
        if type(step) is Deferred:
            return math.inf
        transform = self._possible_transform() if symbols.transform != "none" else None
        gain = 1 if transform is None else transform.size
        return gain * (gain * largest + 2 * float(step))  # a point is within two steps of a value

    def _possible_transform(self) -> FilterTransform | None:
        """Return the transform of the tensor's filters, or None if its shape has none."""
        return None if self._shape is None else FilterTransform.of(self._shape)

    def _slice_unit(self, n: int) -> int:
        transform = self._possible_transform()
        return 1 if transform is None else transform.size

    def _sliceable(self, symbols: QuantizedLevels) -> QuantizedLevels:
        return reconstruction.with_positions(symbols)

    def _slice(self, symbols: QuantizedLevels, start: int, stop: int) -> QuantizedLevels:
        return reconstruction.part_of(symbols, start, stop)

    def _reconstruction(
        self, step: Any, centroids: np.ndarray, transform: FilterTransform | None
    ) -> Reconstruction:
        """Return the map from symbols to values; `step` may be deferred, except with a trellis."""
        if type(step) is not Deferred:
            step = float(np.float32(step)) / (2 if self._has_trellis else 1)
        reconstruction.check_centroids(centroids)
        return Reconstruction(step, centroids, transform)

    # --- pack

    def _encode(self, values: np.ndarray, seed: int, prior: QuantizedLevels | None) -> Payload:
        levels = self._levels(values, seed, prior, narrow=True)
        symbols: Any = levels.symbols  # no one else uses them
        is_computed = isinstance(symbols, ComputedSymbols)
        return self._pack(levels, symbols if is_computed else drainable(symbols))

    def _check_symbols(self, symbols: QuantizedLevels) -> None:
        if device_of(symbols.symbols) is not None:
            return  # a device made all of them itself
        least, outliers = models.least_escape(self._has_trellis), symbols.outliers
        fits = outliers.size == np.count_nonzero(symbols.symbols >= least)
        fits = fits and symbols.lanes in (0, *CLASSED_LANES)
        fits = fits and (symbols.scales is None or symbols.scales.fit(symbols.symbols.size))
        if fits and outliers.size:
            fits = int(outliers.min()) >= least and int(outliers.max()) <= LARGEST_OUTLIER
        self._require(fits, symbols.symbols.size)

    def _pack(self, levels: QuantizedLevels, held: Drainable | None = None) -> Payload:
        """Return the message of levels, whose symbols are released if a `Drainable` has them."""
        symbols = levels.symbols if held is None else held
        reconstruction.check_centroids(levels.centroids)
        scalars: Scalars = {
            field.name: map_deferred(lambda centroids, k=k: int(centroids[k]), levels.centroids)
            for k, field in enumerate(self.scalar_fields())
        }
        scalars |= {"step": levels.step, "transform": levels.transform}
        if levels.on_device is not None:
            written = levels.on_device.write()
        elif levels.scales is None:
            written = Written(empty_beside(0, np.uint8, levels.symbols), 0)
        else:
            plan = levels.plan
            if plan is None:
                plan = table_choice.plan(levels.symbols, levels.scales, lanes=levels.lanes)
            written = coder.write(plan, symbols, levels.outliers, BitString())
        payload, missed = Payload(self.of_message(scalars), scalars, *written), levels.missed
        if missed is not None and missed.parameter == "bits" and type(payload.nbits) is int:
            missed = missed._replace(reached=payload.nbits / levels.symbols.size)  # exact
        return payload._replace(missed=missed)

    # --- unpack

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        string = self._string(payload, n)
        values = result_beside(n, np.float32, payload.data) if out is None else out
        return self._read(string, payload, 0, values)

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        string, transform = self._string(payload, n), self._filter_transform()
        size = 1 if transform is None else transform.size
        first, last = start // size * size, -(-stop // size) * size  # whole filters
        values = empty_beside(last - first, np.float32, None)
        return self._read(string, payload, first, values)[start - first : stop - first]

    def _read(
        self, string: ContextString | None, payload: Payload, start: int, values: np.ndarray
    ) -> np.ndarray:
        """Fill an array with the values from element `start` on, and return it."""
        if string is None or not values.size:
            values[:] = 0
        else:
            self._reconstruction_of(payload).read(string, start, values)
        return values

    def _unpack(self, payload: Payload, n: int) -> QuantizedLevels:
        string = self._string(payload, n)
        if string is None:
            return reconstruction.all_zeros(n, payload.data)._replace(transform=self.transform)
        symbols, (positions, outliers) = empty_beside(n, np.uint8, payload.data), string.outliers
        string.read(into(symbols))
        if outliers.size:  # an encoder may list symbols that are small enough for the array
            is_small = outliers < models.least_escape(self._has_trellis)
            coded_as = models.escapes(outliers, self._has_trellis)
            replace(symbols, positions, np.where(is_small, outliers, coded_as))
            positions, outliers = positions[~is_small], outliers[~is_small]
        points = self._reconstruction_of(payload)
        levels = QuantizedLevels(
            float(self.step),
            points.centroids,
            symbols,
            outliers,
            string.scales,
            string.symbols.lanes if self._has_trellis else 0,
            self.transform,
            None if device_of(symbols) is None else positions,
        )
        if not points.are_finite(levels):
            raise Corrupt("a value exceeds float32")
        return levels

    def _filter_transform(self) -> FilterTransform | None:
        """Return the transform of the tensor's filters; None if there is none, or none wanted."""
        return None if self.transform == "none" else self._possible_transform()

    def _reconstruction_of(self, payload: Payload) -> Reconstruction:
        """Return the map from the symbols of a payload to values."""
        centroids = [payload.scalars[field.name] for field in self.scalar_fields()]
        array = np.array(centroids or [CENTER] * 3, np.uint8)
        return self._reconstruction(self.step, array, self._filter_transform())

    def _check_transform(self) -> None:
        if self.transform == "dct" and self._filter_transform() is None:
            raise Corrupt(f"transform=dct of a tensor of the shape {self._shape}")

    def _string(self, payload: Payload, n: int) -> ContextString | None:
        """Open the string and check all that precedes its symbols; None if all values are 0."""
        span = BitSpan.of(payload)
        self._check_transform()
        if self.step and n:
            return coder.open(span, n, with_trellis=self._has_trellis)
        EmptyString(span).read(ignore)
        return None

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        self._check_transform()
        if self.step:
            describe = self._reconstruction_of(payload).describe
            yield from context_string(walk, "level", n, describe, self._has_trellis)
        walk.finish()

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: Scalars) -> int:
        return 8 * data.size

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        string = self._string(payload, n)
        return no_blocks(log2_block) if string is None else string.blocks(log2_block)
