"""The frame: one compressed tensor as self-describing bytes.

    magic "GCF" · version · flags · codec · dtype · ndim · shape · [name] · parameters · scalars ·
    payload bits · [seek table] · header CRC-32C · payload · payload CRC-32C · [tag]

`Frame.from_bytes` first checks the structure and the header's checksum, then the codec and the
dtype, the payload's checksum, the tag, the limits, and last the meaning of name, parameters and
seek table. So damage is reported as damage, and damaged bytes never cause an allocation. (With a
seek table, the codec and its parameters come first: they determine the length of the header.)
"""

from __future__ import annotations

import copy
import html
import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gcodec.arrays.large_bytes import LEAST_NBYTES, Observed, joined
from gcodec.arrays.protocols import BytesLike, TensorLike
from gcodec.arrays.source import (
    as_dtype,
    byte_view,
    dimensions,
    inspect,
    is_flat,
    shares_memory,
)
from gcodec.codec import Codec, Symbols
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, LimitExceeded, ParameterError
from gcodec.frame import header, integrity
from gcodec.frame.header import Header
from gcodec.frame.integrity import CHECKSUM_NBYTES, check_crc, crc32c, crc32c_from_memory
from gcodec.kernels.numeric import convert, scatter
from gcodec.limits import MOST, Limits
from gcodec.payload import Payload
from gcodec.runtime import Array
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.deferred import copy_to_device, one_wait
from gcodec.runtime.device import Device, device_of, host, no_twin
from gcodec.runtime.memory import Drainable
from gcodec.wire import primitives
from gcodec.wire.kinds import check_integer, check_number, check_type
from gcodec.wire.primitives import FLOATS, FLOATS8, UNCONVERTED, Reader
from gcodec.wire.seek import SeekTable, check_log2, usual_log2s, worthwhile


class _Secret:
    """Slot for a key, outside of the attributes that `vars` and pickles show."""

    __slots__ = ("_key",)

    _key: bytes | None


@dataclass(frozen=True, eq=False)
class Frame(_Secret):
    """One compressed tensor.

    Pickles, `vars`, `repr` and `dataclasses.asdict` omit the key, so an unpickled frame has none.
    `dataclasses.replace` and copies keep it.

    Attributes
    ----------
    codec : Codec
        Codec of the payload, with every ``auto`` resolved.
    dtype : str
        Dtype of the tensor: "float32", "float16", "bfloat16" or "float64"; with ``raw``,
        ``lossless`` and ``patch`` also "int8" to "int64", "uint8" to "uint64", "bool",
        "float8_e4m3fn" or "float8_e5m2".
    shape : tuple of int
        Shape of the tensor.
    payload : Payload
        Bytes that the codec produced, with their scalars and seek table.
    name : str or None
        Name of the tensor.
    key : bytes or None
        Key of the frame's tag; None for a frame without a tag.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> data = gcodec.encode(np.ones((2, 3), np.float16), "sign", name="fc.bias")
    >>> frame = gcodec.Frame.from_bytes(data)
    >>> frame.name, frame.dtype, frame.shape, str(frame.codec), frame.payload.nbits
    ('fc.bias', 'float16', (2, 3), 'sign', 6)
    >>> frame.decode()
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float16)
    """

    codec: Codec
    dtype: str
    shape: tuple[int, ...]
    payload: Payload
    name: str | None = None
    if TYPE_CHECKING:
        key: bytes | None = None
    else:  # an InitVar is no field, so code that iterates over the fields cannot reveal the key
        key: InitVar[bytes | None] = None

    def __post_init__(self, key: bytes | None = None) -> None:  # noqa: RUF033
        """Check the fields, and bind the codec to dtype and shape.

        Raises
        ------
        ParameterError
            If a field is invalid.
        Corrupt
            If the seek table does not fit.
        """
        check_type("codec", self.codec, Codec)
        check_type("payload", self.payload, Payload)
        shape = dimensions(self.shape)
        if len(shape) > primitives.MAX_NDIM:
            raise ParameterError.of("shape", shape, f"at most {primitives.MAX_NDIM} sizes")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "_key", integrity.check_key(key))
        codec, payload = self.codec._with_dtype(self.dtype)._with_shape(self.shape), self.payload
        object.__setattr__(self, "codec", codec)
        if self.dtype in UNCONVERTED:
            object.__setattr__(self, "payload", payload._replace(codec=codec))
        if payload.seek is not None:
            count = codec.seek_count(self.size)
            payload.seek.check(codec.seek_blocks, count, payload.nbits)

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes without the key."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a frame from a pickle; the frame has no key."""
        vars(self).update(state)
        object.__setattr__(self, "_key", None)

    def __repr__(self) -> str:
        """Return the name, the codec, the tensor and the bits per value."""
        name = "" if self.name is None else f" {self.name!r}"
        facts = [str(self.codec), self.dtype, str(self.shape)]
        if self.size:
            facts.append(f"{8 * self.nbytes / self.size:.2f} bits per value")
        return f"<Frame{name}: {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        facts = {} if self.name is None else {"name": repr(self.name)}
        facts |= {"codec": str(self.codec), "dtype": self.dtype, "shape": str(self.shape)}
        facts["bytes"] = f"{self.nbytes:,}, {self.payload.data.size:,} of them payload"
        if self.size:
            facts["bits per value"] = f"{8 * self.nbytes / self.size:.2f}"
        if self.seek is not None:
            facts["seek table"] = (
                f"for blocks of 2^{self.seek.log2_block} {self.codec.seek_blocks}"
            )
        if self.key is not None:
            facts["tag"] = f"{primitives.TAG_NBYTES} bytes"
        rows = [
            f"<tr><th>{key}</th><td>{html.escape(value)}</td></tr>" for key, value in facts.items()
        ]
        return "\n".join(["<table>", *rows, "</table>"])

    def __copy__(self) -> Frame:
        """Return a copy, key included."""
        return replace(self)

    def __deepcopy__(self, memo: dict[int, object]) -> Frame:
        """Return a copy whose payload has memory of its own, key included."""
        return replace(self, payload=copy.deepcopy(self.payload, memo))

    @property
    def seek(self) -> SeekTable | None:
        """Seek table of the payload."""
        return self.payload.seek

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the frame."""
        tag = primitives.TAG_NBYTES if self.key is not None else 0
        return len(self.header()) + self.payload.data.size + CHECKSUM_NBYTES + tag

    @exact
    def header(self) -> bytes:
        """Return the bytes that precede the payload, their checksum included."""
        has_tag = self.key is not None
        written = header.write(
            self.codec, self.dtype, self.shape, self.name, self.payload, has_tag
        )
        return written + crc32c(written)

    def to_bytes(self) -> bytes:
        """Return the bytes of the frame."""
        return b"".join(self.large_parts())

    def large_parts(
        self, check: Callable[[np.ndarray], None] | None = None, *, drains: bool = False
    ) -> list[bytes | memoryview]:
        """Return the frame as `parts`, or joined to one part if the payload is large.

        Joining takes the checksum of a large payload in the pass that copies it.

        Parameters
        ----------
        check : callable, optional
            Gets consecutive chunks of the payload's bytes. Each chunk but the last has a multiple
            of 8 bytes.
        drains : bool
            Whether to release a large payload while it is copied. Nothing else may read the
            payload during or after this call.
        """
        array = np.ascontiguousarray(host(self.payload.data))
        payload = Drainable(array) if drains else array
        is_small = array.nbytes < LEAST_NBYTES
        if is_small or self.key is not None:
            if check is not None:
                check(array)
            parts = self._parts_of(array)
            return parts if is_small else [joined([parts[0], payload, *parts[2:]])]
        checksum = integrity.RunningChecksum()

        def observe(chunk: np.ndarray) -> None:
            if check is not None:
                check(chunk)
            checksum.update(chunk)

        return [joined([self.header(), Observed(payload, observe), checksum.stored])]

    def parts(self) -> list[bytes | memoryview]:
        """Return the frame as bytes-like parts: header, payload, checksum and tag."""
        return self._parts_of(np.ascontiguousarray(host(self.payload.data)))

    def _parts_of(self, payload: np.ndarray) -> list[bytes | memoryview]:
        parts: list[bytes | memoryview] = [self.header(), payload.data, crc32c(payload)]
        if self.key is not None:
            parts.append(integrity.tag_of(self.key, parts))
        return parts

    @exact
    def with_seek(self, log2_block: int | None = None) -> Frame:
        """Return the frame with a seek table; this decodes the payload to find the blocks.

        Parameters
        ----------
        log2_block : int, optional
            Base-2 logarithm of the block size, in elements or sent values: 0 to 62, or 5 to 18
            for rANS. Default: the encoder's choice, which is 12; for rANS it is 16, or 18 if the
            table for 16 would exceed 1 % of the payload.

        Returns
        -------
        Frame
            Frame with the same payload and key. This frame itself if it already has the table, or
            if it cannot have one because its codec has no blocks or the payload sends nothing.

        Raises
        ------
        FormatError
            If the payload cannot be decoded.
        ParameterError
            If `log2_block` is out of range.
        """
        blocks = self.codec.seek_blocks
        if log2_block is None:
            log2s = usual_log2s(blocks or "elements")
        else:
            log2s = (check_log2(log2_block, blocks or "elements"),)
        if blocks is None or not self.size:
            return self
        table = self._best_table(log2s)
        if table is self.seek or not table.offsets[-1]:
            return self
        return replace(self, payload=self.payload._replace(seek=table))

    def _best_table(self, log2s: tuple[int, ...]) -> SeekTable:
        """Return the first table that is worth its bytes, or else the smallest."""
        payload, tables = self.payload._replace(seek=None), list[SeekTable]()
        for log2_block in log2s:
            if self.seek is not None and self.seek.log2_block == log2_block:
                tables.append(self.seek)
            else:
                tables.append(self.codec._index(payload, self.size, log2_block))
            if worthwhile(tables[-1], self.size, self.payload.nbits):
                return tables[-1]
        return min(tables, key=lambda table: table.nbytes)

    def without_seek(self) -> Frame:
        """Return the frame without a seek table, key included; it decodes to the same tensor."""
        return replace(self, payload=self.payload._replace(seek=None)) if self.seek else self

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        *,
        limits: Limits | None = None,
        key: bytes | None = None,
    ) -> Frame:
        """Read a frame from exactly its bytes.

        Parameters
        ----------
        data : bytes-like
            One frame; or an array that contains its bytes. The payload of the result is a view of
            this memory.
        limits : Limits, optional
            Bounds on the memory that decoding may allocate; default ``Limits()``.
        key : bytes, optional
            Key of the frame's tag. A frame without a tag of this key is refused.

        Raises
        ------
        FormatError
            If the bytes are damaged, are no frame, or exceed the limits.
        ParameterError
            If `limits` or `key` is invalid.
        TypeError
            If `data` is not bytes-like.
        """
        reader = Reader(byte_view(data, "data"))
        frame = cls.read(reader, Limits.or_default(limits), key)
        if after := reader.data[reader.at :]:
            is_frame = after[: len(primitives.MAGIC)] == primitives.MAGIC
            hint = "; gcodec.iter_frames reads several frames" if is_frame else ""
            raise Corrupt(f"bytes follow the frame{hint}", offset=reader.at)
        return frame

    @classmethod
    def of(
        cls,
        frame: FrameLike,
        *,
        limits: Limits | None = None,
        key: bytes | None = None,
    ) -> Frame:
        """Return a `Frame` as it is, because it has been checked, and read one from bytes.

        See `from_bytes` for `limits` and `key`.

        Raises
        ------
        FormatError
            See `from_bytes`.
        ParameterError
            If an argument is invalid, or a `Frame` has another key or none.
        TypeError
            If `frame` is neither a `Frame` nor bytes-like.
        """
        if not isinstance(frame, Frame):
            return cls.from_bytes(byte_view(frame, "frame"), limits=limits, key=key)
        if key is not None and frame.key != integrity.check_key(key):
            raise ParameterError("key: the Frame has another key, or none")
        return frame

    @classmethod
    @exact
    def read(cls, reader: Reader, limits: Limits, key: bytes | None) -> Frame:
        """Read the next frame; see `from_bytes`."""
        start = reader.at
        head = Header.read(reader)
        check_crc(reader, crc32c(reader.data[start : reader.at]), "header")
        codec_class = by_id(head.codec_id)  # an unknown codec is reported before other errors
        dtype = header.dtype_named(head.dtype_code, start + 6, codec_class)
        n = math.prod(head.shape)
        payload_data = np.frombuffer(reader.take(head.payload_nbytes), np.uint8)
        check_crc(reader, crc32c_from_memory(payload_data), "payload")
        signed = reader.data[start : reader.at]
        tag = bytes(reader.take(primitives.TAG_NBYTES)) if head.has_tag else None
        key = integrity.check_key(key)
        integrity.check_tag(tag, key, signed)
        limits.check("the frame", n, n * primitives.ITEMSIZE[dtype], reader.at - start)
        header.check_shape(head.shape, start + 8)
        name = head.decoded_name()
        codec, scalars = head.codec_and_scalars(dtype)
        codec = codec._with_shape(head.shape)
        limits.check_products("the frame", codec.products(n))
        seek = None if head.seek is None else head.seek.table(codec.seek_count(n))
        payload = Payload(codec, scalars, payload_data, head.nbits, seek)
        return cls(codec, dtype, head.shape, payload, name, key)

    @exact
    def decode(self, *, like: TensorLike | None = None, out: TensorLike | None = None) -> Any:
        """Decode the tensor; see `gcodec.decode`."""
        if like is not None and out is not None:
            raise ParameterError("like and out: pass only one of them")
        if out is not None:
            source = inspect(out, "out")
            with source.context():
                target = source.target(self.dtype, self.shape)
                self.apart_from(target)._decode_into(target, source.device)
            return out
        if like is not None:
            source = inspect(like, "like")
            with source.context():
                dtype = source.result_dtype(self.shape, self.dtype)
                return source.result(self._decode_to(dtype, source.device))
        with one_wait():
            return self._decode_to(self.dtype, None)

    def check_addressable(self) -> None:
        """Raise `LimitExceeded` if no array can hold the whole tensor, whatever the limits."""
        nbytes = self.size * primitives.ITEMSIZE[self.dtype]
        if nbytes > MOST:
            raise LimitExceeded(f"the frame needs {nbytes} bytes, more than any array can have")

    def apart_from(self, array: Array) -> Frame:
        """Return the frame, with a copy of its payload if that lies in the memory of an array."""
        if not shares_memory(self.payload.data, array):
            return self
        return replace(self, payload=self.payload._replace(data=self.payload.data.copy()))

    def _decode_to(self, dtype: str, device: Device | None) -> Array:
        """Return the tensor as an array of `dtype` on a device, or for None on the host."""
        self.check_addressable()
        if device is not None and dtype == self.dtype and self.codec.keeps_every_bit:
            exact = self.codec._decode_as(dtype, self._payload_on(device), self.size)
            return exact.reshape(self.shape)
        if device is not None and self.dtype in FLOATS:
            values = convert.round_to(self._decode_on(device), self.dtype)
            return as_dtype(values, dtype).reshape(self.shape)
        # Other codecs decode such tensors on the host in any case.
        array = self.codec._decode_as(self.dtype, self._payload_on(None), self.size)
        if device is not None:
            if self.dtype in FLOATS8:  # CuPy has no such dtype
                array = array.view(np.uint8)
            array = device.to_device(array)
        elif dtype != self.dtype:
            array = as_dtype(inspect(array, "frame").read().values, dtype)
        return array.reshape(self.shape)

    def _decode_into(self, target: Array, device: Device | None) -> None:
        """Write the tensor to an array of its shape and dtype; see `Source.target`."""
        if not is_flat(target):
            target[...] = self._decode_to(self.dtype, None)
            return
        flat = target.reshape(-1)
        if device is None or self.codec.keeps_every_bit:
            self.codec._decode_as(self.dtype, self._payload_on(device), self.size, flat)
        elif self.dtype in UNCONVERTED:
            array = self.codec._decode(self._payload_on(None), self.size)
            flat[:] = device.to_device(array.view(flat.dtype))
        elif self.dtype == "float32":
            self.codec._decode(self._payload_on(device), self.size, flat)
        else:
            flat[:] = as_dtype(self._decode_on(device), self.dtype)

    def _decode_on(self, device: Device) -> Array:
        """Return the values as an (n,) float32 array on a device."""
        payload = self._payload_on(device)
        out = device.empty(self.size, np.float32) if self.codec.symbols_on_host else None
        values = self.codec._decode(payload, self.size, out)
        return convert.from_float64(values) if values.dtype == np.float64 else values

    def _payload_on(self, device: Device | None) -> Payload:
        """Return the payload for decoding on a device, or for None on the host."""
        payload = self.payload
        if device is not None and not self.codec.on_device:
            raise no_twin(str(self.codec))
        if self.codec.symbols_on_host:
            device = None
        if device_of(payload.data) is device:
            return payload
        if device is None:
            return payload._replace(data=host(payload.data))
        return payload._replace(data=copy_to_device(device, payload.data))

    @exact
    def decode_range(self, start: int, stop: int) -> np.ndarray:
        """Decode a range of the flattened tensor; see `gcodec.decode_range`."""
        start = check_integer("start", start, 0, self.size, f"an integer from 0 to {self.size}")
        allowed = f"an integer from start={start} to {self.size}"
        stop = check_integer("stop", stop, start, self.size, allowed)
        self.check_addressable()
        values = self.codec._decode_range(self.payload, self.size, start, stop)
        return as_dtype(values, self.dtype)

    @exact
    def decode_sparse(self) -> tuple[np.ndarray, np.ndarray]:
        """Decode the indices and values of a sparse frame; see `gcodec.decode_sparse`."""
        positions, values = self.codec._decode_sparse(self.payload, self.size)
        return positions, as_dtype(values, self.dtype)

    def check_floats(self) -> None:
        """Raise `ParameterError` unless the frame stores floats of 16 bits or more."""
        if self.dtype in UNCONVERTED:
            allowed = f"one of {', '.join(FLOATS)}; use decode for other dtypes"
            raise ParameterError.of("frame.dtype", self.dtype, allowed)

    @exact
    def decode_add(self, acc: TensorLike, scale: float = 1.0) -> None:
        """Add ``scale`` times the tensor to `acc`; see `gcodec.decode_add`."""
        self.check_floats()
        scale = check_number("scale", scale)
        source = inspect(acc, "acc")
        with source.stream():
            target = source.target("float32", self.shape)
            with one_wait():  # raise errors in the payload before `acc` changes
                payload = self.apart_from(target)._payload_on(source.device)
                elements = self._read_elements(payload, target)
                if elements is None:
                    add = self.codec._read_adder(payload, self.size, self.dtype)
            contiguous = target if is_flat(target) else np.require(target, None, ["C", "A"])
            with np.errstate(all="ignore"):
                flat, factor = contiguous.reshape(-1), np.float32(scale)
                if elements is None:
                    add(factor, flat)
                else:
                    scatter.add(flat, *elements, factor)
            if contiguous is not target:
                target[...] = contiguous

    def _read_elements(
        self, payload: Payload, beside: Array, symbols: Symbols | None = None
    ) -> tuple[Array, Array] | None:
        """Return positions and rounded values of the sent elements, or None if all n are sent.

        The payload is that of this frame, perhaps copied to where the array `beside` lies. It is
        not read if its symbols are known. For all checks and the result, see
        `Codec._read_elements`.
        """
        if symbols is None:
            elements = self.codec._read_elements(payload, self.size, beside)
        else:
            elements = self.codec._elements(symbols, self.size, beside)
        if elements is None:
            return None
        positions, values = elements
        return positions, convert.round_to(values, self.dtype)


# A dataclass would take a property in the body of the class for the parameter's default value.
Frame.key = property(lambda frame: frame._key)  # type: ignore[assignment]


FrameLike: TypeAlias = "Frame | BytesLike"
"""A frame, or the bytes of one."""
