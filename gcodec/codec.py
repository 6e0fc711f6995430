"""What a codec is: a frozen set of parameters with quantize → Symbols → pack, and back.

All floating point is on the left of `Symbols`, all bytes on the right. A codec's class writes four
methods on flat arrays (`_quantize`, `_dequantize`, `_pack`, `_unpack`), and may fuse others with
the same bits. All that users call is given here once: intake, checks, allocation, compositions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec.arrays import (
    empty_like_shape,
    intake,
    is_flat,
    shares_memory,
    size_of,
    writable,
)
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.hooks import Hooks, Symbols
from gcodec.kernels.device import device_of, host
from gcodec.kernels.memory import empty_beside
from gcodec.kernels.philox import check_seed
from gcodec.kinds import binary32, check_number
from gcodec.payload import Payload
from gcodec.scalars import once, settled
from gcodec.seek import most_nbytes
from gcodec.wire import encode_name, max_header_nbytes


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Codec(Hooks):
    """Base of all codecs; see `gcodec.register`."""

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
        tensor = intake(x, integers=self.takes_integers, segments=self.reads_segments)
        self._check_device(tensor.values)
        codec = self._of_dtype(tensor.dtype)._of_shape(tensor.shape)
        with once():
            symbols: Symbols = settled(codec._quantize(tensor.values, check_seed(seed), prior))
        return symbols

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
        self._check_device(tensor.values)
        shape = tuple(residual.shape) if hasattr(residual, "shape") else np.shape(residual)
        kept = writable(residual, "residual", "float32", shape)
        if kept.size != tensor.values.size:
            raise ParameterError.of("residual.shape", shape, f"of {tensor.values.size} elements")
        if not is_flat(kept):
            raise ParameterError("residual is strided: must be C-contiguous")
        if (device := device_of(kept)) is not device_of(tensor.values):
            raise ParameterError("residual and x are on different devices")
        if (device.overlap if device else np.may_share_memory)(kept, tensor.values):
            raise ParameterError("residual shares memory with x: must be an array of its own")
        codec, flat = self._of_shape(tensor.shape), kept.reshape(-1)
        left = empty_like_shape(flat.size, flat) if device else flat  # it may fail in the end
        with once():
            made = codec._quantize_residual(
                tensor, flat, np.float32(decay), check_seed(seed), prior, left
            )
            symbols: Symbols = settled(made)
        if device:
            flat[:] = left
        return symbols

    def dequantize(self, symbols: Symbols, shape: Any) -> np.ndarray:
        """Return the float32 array of `shape` that the symbols stand for.

        Raises
        ------
        ParameterError
            If the symbols are not those of as many elements.
        """
        out = empty_beside(size_of(shape), self._values_dtype, None)
        self._of_shape(shape)._dequantize(symbols, out)
        return out.reshape(shape)

    def pack(self, symbols: Symbols) -> Payload:
        """Turn symbols into the published bytes."""
        with once():
            return self._pack(symbols).settled()

    def unpack(self, payload: Payload, shape: Any) -> Symbols:
        """Turn the published bytes into symbols.

        Raises
        ------
        FormatError
            If the bytes are not those of as many elements.
        """
        payload = self._checked(payload, size_of(shape))
        with once():
            return payload.codec._of_shape(shape)._unpack(payload, size_of(shape))

    def encode(self, x: Any, *, seed: int = 0, prior: Symbols | None = None) -> Payload:
        """Quantise and pack; see `quantize`."""
        tensor = intake(x, integers=self.takes_integers, segments=self.reads_segments)
        self._check_device(tensor.values)
        codec = self._of_dtype(tensor.dtype)._of_shape(tensor.shape)
        with once():
            payload = codec._encode(tensor.values, check_seed(seed), prior).settled()
        if shares_memory(payload.data, tensor.values):  # and outlives the caller's array
            payload = payload._replace(data=payload.data.copy())
        return payload

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
            For a `Payload` of integers or booleans, an array of their dtype.

        Raises
        ------
        ParameterError
            If a scalar is missing, unknown or out of range.
        FormatError
            If the bytes are wrong.
        """
        if not isinstance(payload, Payload):
            payload = self._bare_payload(payload, size_of(shape), nbits, scalars)
        elif nbits is not None or scalars:
            raise ParameterError("nbits and scalars belong to bare bytes; a Payload has its own")
        payload = self._checked(payload, size_of(shape))
        codec = payload.codec._of_shape(shape)
        with once():
            values: np.ndarray = codec._decode(payload, size_of(shape))
        return values.reshape(shape)

    def _checked(self, payload: Payload, n: int) -> Payload:
        """Return a message of n elements that is one of this kind of codec, and whole."""
        if type(payload.codec) is not type(self):
            raise ParameterError.of("payload.codec", str(payload.codec), f"a {self.name} codec")
        if unresolved := payload.codec.unresolved():
            raise ParameterError(f"payload.codec: {unresolved[0]} is not resolved")
        for field in payload.codec.message_fields():
            if field.name not in payload.scalars:
                raise ParameterError(f"payload.scalars: {field.name} is missing")
        self._check_device(payload.data)
        if payload.codec.symbols_on_host:
            payload = payload._replace(data=host(payload.data))
        device = device_of(payload.data)
        data = device.flat(payload.data) if device else np.ascontiguousarray(payload.data)
        if data.dtype != np.uint8:
            raise ParameterError.of("payload.data", str(data.dtype), "of uint8")
        if data.size != -(-payload.nbits // 8):
            kind = Truncated if 8 * data.size < payload.nbits else Corrupt
            raise kind(f"the payload has {data.size} bytes for {payload.nbits} bits")
        if payload.seek is not None:
            count = payload.codec.seek_count(n)
            payload.seek.check(payload.codec.seek_blocks, count, payload.nbits)
        return payload._replace(data=data)

    def max_encoded_nbytes(
        self, n: int, name: str | None = None, *, dtype: str = "float32"
    ) -> int:
        """Return the most bytes that `gcodec.encode` makes of a tensor.

        Parameters
        ----------
        n : int
            Number of elements.
        name : str, optional
            Name of the tensor.
        dtype : str
            Dtype of the tensor. It matters for integers and booleans alone, which only ``raw``
            takes: all floats have the same bound.

        Raises
        ------
        ParameterError
            If the codec takes no tensors of that dtype.
        """
        payload = -(-self._of_dtype(dtype).max_payload_nbits(size_of(n)) // 8)
        title = 0 if name is None else len(encode_name(name))
        header = max_header_nbytes(n, title, self.fields_nbytes())
        has_blocks = type(self).seek_blocks is not Codec.seek_blocks  # whatever "auto" becomes
        return payload + header + (most_nbytes(n, payload) if has_blocks else 0)

    def _bare_payload(
        self, data: Any, n: int, nbits: int | None, scalars: Mapping[str, Any]
    ) -> Payload:
        kinds = {field.name: field.kind for field in self.message_fields()}
        for name in scalars:
            if name not in kinds:
                allowed = ", ".join(kinds) or "none"
                raise ParameterError(f"{name}: scalars of a {self.name} message are: {allowed}")
        given = {name: kinds[name].check(name, value) for name, value in scalars.items()}
        codec = self.of_message(given)
        own = {d.name: getattr(codec, d.attribute) for d in codec.declared() if d.in_message}
        values = own | given
        missing = [name for name in kinds if name not in values]
        for name in (*codec.unresolved(), *missing):
            raise ParameterError(f"{name}: bare bytes do not tell it; give it as {name}=…")
        try:
            flat = np.frombuffer(data, np.uint8) if device_of(data) is None else data
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(f"payload is a {type(data).__name__}: must be bytes-like") from error
        if nbits is None:
            nbits = codec._bare_nbits(n, flat, values)
        if not isinstance(nbits, (int, np.integer)) or nbits < 0:
            raise ParameterError.of("nbits", nbits, "a non-negative integer")
        return Payload(codec, values, flat, int(nbits))
