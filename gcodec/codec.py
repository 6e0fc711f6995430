"""What a codec is: a frozen set of parameters with quantize → Symbols → pack, and back.

All floating point is on the left of `Symbols`, all bytes on the right. A codec's class writes four
methods on flat arrays (`_quantize`, `_dequantize`, `_pack`, `_unpack`); everything that users
call is given here once: intake, checks, allocation, and the compositions `encode`, `decode` and
`quantize_residual`. A class may fuse `_quantize_residual` and `_dequantize_add`, with the same
bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gcodec.arrays import Tensor, empty_like_shape, intake, is_flat, size_of, writable
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.kernels import arithmetic, convert
from gcodec.kernels.philox import check_seed
from gcodec.kernels.reduce import all_finite
from gcodec.kinds import binary32, check_number
from gcodec.params import Parameters
from gcodec.wire import encode_name, max_header_nbytes

Symbols = Any  # each codec declares its own NamedTuple

_C = TypeVar("_C", bound="type[Codec]")


class Payload(NamedTuple):
    """The published bytes of one message, and what the original keeps outside of them.

    Attributes
    ----------
    codec : Codec
        With every ``auto`` resolved.
    scalars : dict of str to number
        The values that belong to this message alone, such as a resolved threshold.
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
        Bits of the payload, its own norms, tables and padding included.
    """

    codec: Codec
    scalars: dict[str, Any]
    data: np.ndarray
    nbits: int

    def tobytes(self) -> bytes:
        """Return the bytes that the paper or system defines."""
        return self.data.tobytes()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Codec(Parameters):
    """Base of all codecs; see `register`."""

    id: ClassVar[int]
    name: ClassVar[str]

    # What a class writes. Arrays are flat; `values` and `out` are float32.

    def _quantize(self, values: np.ndarray, seed: int, prior: Symbols | None) -> Symbols:
        raise NotImplementedError

    def _dequantize(self, symbols: Symbols, out: np.ndarray) -> None:
        raise NotImplementedError

    def _pack(self, symbols: Symbols) -> tuple[Codec, np.ndarray, int]:
        """Return the codec with every ``auto`` resolved, the bytes, and their number of bits."""
        raise NotImplementedError

    def _unpack(self, payload: Payload, n: int) -> Symbols:
        """Check everything that bytes from a stranger can get wrong; raise `FormatError`."""
        raise NotImplementedError

    def max_payload_nbits(self, n: int) -> int:
        """Return the most bits of the payload of n elements."""
        raise NotImplementedError

    # What a class may fuse, with the same bits.

    def _quantize_residual(
        self,
        tensor: Tensor,
        residual: np.ndarray,
        decay: np.float32,
        seed: int,
        prior: Symbols | None,
    ) -> Symbols:
        values = arithmetic.corrected(tensor.values, residual, decay)
        symbols = self._quantize(values, seed, prior)
        decoded = empty_like_shape(values.size)
        self._dequantize(symbols, decoded)
        decoded = convert.round_to(decoded, tensor.dtype)
        if not all_finite(decoded) and all_finite(values):
            raise ParameterError(f"x: must not pass the range of {self} or {tensor.dtype}")
        arithmetic.subtract(values, decoded, residual)
        return symbols

    def _dequantize_add(
        self, symbols: Symbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        decoded = empty_like_shape(out.size)
        self._dequantize(symbols, decoded)
        arithmetic.add_scaled(convert.round_to(decoded, dtype), scale, out)

    # The laws; None where none holds.

    @property
    def unbiased(self) -> bool:
        """Whether the expectation of the decoded value, over seeds, is the value."""
        return False

    def contraction(self, n: int) -> float | None:
        """δ with ‖x − x̂‖² ≤ (1 − δ)·‖x‖² for every x of n elements, or None."""
        return None

    def variance(self, n: int) -> float | None:
        """ω with E‖x − x̂‖² ≤ ω·‖x‖² for every x of n elements, or None."""
        return None

    # What users call.

    def quantize(self, x: Any, *, seed: int = 0, prior: Symbols | None = None) -> Symbols:
        """Turn a gradient into integers and the few scalars that are sent verbatim.

        Parameters
        ----------
        x : array of n elements
            See `gcodec.encode`. No policy for NaN and Inf applies here.
        seed : int
            From 0 to 2**64 - 1.
        prior : Symbols, optional
            What this codec made of the same tensor at the previous step.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError, TypeError
        """
        return self._quantize(intake(x).values, check_seed(seed), prior)

    def quantize_residual(
        self,
        x: Any,
        residual: np.ndarray,
        *,
        decay: float = 1.0,
        seed: int = 0,
        prior: Symbols | None = None,
    ) -> Symbols:
        """Quantise u = x + decay·residual and set residual to u − x̂.

        x̂ is what decoding returns, rounded to the dtype of `x`.

        Parameters
        ----------
        x : array of n elements
        residual : float32 array of n elements
            C-contiguous; updated in place. Untouched when an error is raised.
        decay : float
        seed : int
            From 0 to 2**64 - 1.
        prior : Symbols, optional
            What this codec made of the same tensor at the previous step.

        Returns
        -------
        NamedTuple
            The codec's own `Symbols`.

        Raises
        ------
        ParameterError, TypeError
        """
        tensor = intake(x)
        decay = check_number("decay", decay, "a number, finite as float32")
        if not math.isfinite(binary32(decay)):
            raise ParameterError.of("decay", decay, "a number, finite as float32")
        shape = np.shape(residual)
        kept = writable(residual, "residual", "float32", shape)
        if kept.size != tensor.values.size:
            raise ParameterError.of("residual.shape", shape, f"of {tensor.values.size} elements")
        if not is_flat(kept):
            raise ParameterError("residual is strided: must be C-contiguous")
        if np.may_share_memory(kept, tensor.values):
            raise ParameterError("residual shares memory with x: must be an array of its own")
        return self._quantize_residual(
            tensor, kept.reshape(-1), np.float32(decay), check_seed(seed), prior
        )

    def dequantize(self, symbols: Symbols, shape: Any) -> np.ndarray:
        """Return the float32 array of `shape` that the symbols stand for.

        Raises
        ------
        ParameterError
            If the symbols are not those of as many elements.
        """
        out = empty_like_shape(shape)
        self._dequantize(symbols, out)
        return out.reshape(shape)

    def pack(self, symbols: Symbols) -> Payload:
        """Turn symbols into the published bytes."""
        codec, data, nbits = self._pack(symbols)
        return Payload(codec, codec.message_values(), data, nbits)

    def unpack(self, payload: Payload, shape: Any) -> Symbols:
        """Turn the published bytes into symbols.

        Raises
        ------
        FormatError
            If the bytes are not those of as many elements.
        """
        if type(payload.codec) is not type(self):
            raise ParameterError.of("payload.codec", str(payload.codec), f"a {self.name} codec")
        return payload.codec._unpack(payload, size_of(shape))

    def encode(self, x: Any, *, seed: int = 0, prior: Symbols | None = None) -> Payload:
        """Quantise and pack; see `quantize`."""
        return self.pack(self.quantize(x, seed=seed, prior=prior))

    def decode(
        self,
        payload: Payload | bytes | bytearray | memoryview | np.ndarray,
        shape: Any,
        *,
        nbits: int | None = None,
        **scalars: Any,
    ) -> np.ndarray:
        """Decode a payload, or bare bytes that another system wrote.

        Parameters
        ----------
        payload : Payload or bytes-like
        shape : tuple of int or int
            Of the gradient, in elements.
        nbits : int, optional
            Bits of a bare payload, where its bytes do not tell.
        **scalars
            The values that the original keeps outside the bytes, such as ``threshold=0.25``.

        Returns
        -------
        float32 array of `shape`

        Raises
        ------
        ParameterError
            If a scalar is missing, unknown or out of range.
        FormatError
            If the bytes are wrong.
        """
        if not isinstance(payload, Payload):
            payload = self._bare_payload(payload, nbits, scalars)
        elif nbits is not None or scalars:
            raise ParameterError("nbits and scalars belong to bare bytes; a Payload has its own")
        return payload.codec.dequantize(self.unpack(payload, shape), shape)

    def max_encoded_nbytes(self, n: int, name: str | None = None) -> int:
        """Return the most bytes of a frame of n elements, of any shape, with this name."""
        payload = -(-self.max_payload_nbits(size_of(n)) // 8)
        name_nbytes = 0 if name is None else len(encode_name(name))
        return payload + max_header_nbytes(n, name_nbytes, self.fields_nbytes())

    def _bare_payload(self, data: Any, nbits: int | None, scalars: Mapping[str, Any]) -> Payload:
        known = self.message_values()
        for name in scalars:
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise ParameterError(f"{name}: scalars of a {self.name} message are: {allowed}")
        codec = self.replaced(**scalars)
        values = codec.message_values()
        for name, value in values.items():
            if isinstance(value, str):
                raise ParameterError(f"{name}: bare bytes do not tell it; pass {name}=…")
        try:
            flat = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(f"payload is a {type(data).__name__}: must be bytes-like") from error
        if nbits is None:
            nbits = 8 * flat.size
        if not isinstance(nbits, (int, np.integer)) or nbits < 0:
            raise ParameterError.of("nbits", nbits, "a non-negative integer")
        if nbits > 8 * flat.size:
            raise Truncated(f"the payload has {8 * flat.size} of {nbits} bits")
        if -(-nbits // 8) < flat.size:
            raise Corrupt(f"the payload has {flat.size} bytes for {nbits} bits")
        return Payload(codec, values, flat, int(nbits))

    def _require(self, fits: bool, n: int) -> None:
        """Raise `ParameterError` unless symbols fit the shape they are decoded to."""
        if not fits:
            raise ParameterError(f"symbols: they are not those of {n} elements")


_registry: dict[str, type[Codec]] = {}


def register(*, id: int, name: str) -> Callable[[_C], _C]:
    """Make a class a codec: a frozen dataclass, known by `name` in specs and `id` in frames.

    Parameters
    ----------
    id : int
        On the wire, never reused; 192 to 255 are for codecs of one's own.
    name : str
        In lower case.

    Raises
    ------
    ParameterError
        If the id or the name is taken.
    """

    def decorate(cls: _C) -> _C:
        if not isinstance(id, int) or not 1 <= id <= 255:
            raise ParameterError.of("id", id, "from 1 to 255")
        for other in _registry.values():
            same = (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
            if (other.id == id or other.name == name) and not same:
                raise ParameterError.of("id or name", (id, name), f"free; {other.name} has it")
        cls.id, cls.name = id, name
        _registry[name] = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        return cls

    return decorate


def registered() -> dict[str, type[Codec]]:
    """Return the codecs known so far, by name, in the order of their ids."""
    return dict(sorted(_registry.items(), key=lambda item: item[1].id))
