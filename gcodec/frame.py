"""The frame: one compressed tensor as bytes that say what they are, and stand alone.

    magic "GCF" · version · flags · codec · dtype · ndim · shape · [name] · parameters · scalars ·
    payload bits · [seek table] · header CRC-32C · payload · payload CRC-32C · [tag]

`Frame.from_bytes` checks structure and header checksum first, then codec and dtype, the payload's
checksum, the tag, the limits, and last what name, parameters and seek table mean. So damage is
called damage, and nothing is allocated on its word. (Only where there is a seek table, codec and
parameters come before the header's checksum: they tell how long it is.)
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import math
from dataclasses import InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from gcodec import header
from gcodec.arrays.intake import (
    as_library_of,
    device_like,
    dtype_like,
    intake,
    is_flat,
    outlet,
    writable,
)
from gcodec.arrays.large_bytes import joined
from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.kernels.numeric import convert
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.runtime.deferred import copied, once
from gcodec.runtime.device import Device, device_of, host, no_twin
from gcodec.runtime.memory import Drainable
from gcodec.wire import primitives
from gcodec.wire.kinds import check_integer, check_number
from gcodec.wire.primitives import TAG_NBYTES, Reader
from gcodec.wire.seek import SeekTable, check_log2, usual_log2s, worthwhile


def check_key(key: bytes | None) -> bytes | None:
    """Return `key` if it can be that of a tag, else raise `ParameterError`."""
    if key is not None and not (isinstance(key, bytes) and 1 <= len(key) <= 64):
        raise ParameterError.of("key", "…", "1 to 64 bytes")
    return key


def check_tag(tag: bytes | None, key: bytes | None, signed: memoryview) -> None:
    """Raise `FormatError` unless a frame's tag is that of the key, both or neither None."""
    if key is None:
        if tag is not None:
            raise Unsupported("the frame is authenticated: its key is needed to check it")
        return
    if tag is None or not hmac.compare_digest(tag, tag_of(key, [signed])):
        raise Corrupt("the frame does not bear the tag of this key")


def tag_of(key: bytes, parts: list[Any]) -> bytes:
    """Return the tag of bytes-like parts that lie end to end."""
    digest = hashlib.blake2b(key=key, digest_size=TAG_NBYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


CHECKSUM_NBYTES = 4

_ADDRESSABLE = 1 << 59  # elements of the largest array that NumPy makes, empty ones included
_DTYPE_NAMES = {code: name for name, code in primitives.DTYPE_CODES.items()}


class _Secret:
    """Room for a key beside the attributes that `vars` and pickles show."""

    __slots__ = ("_key",)

    _key: bytes | None


@dataclass(frozen=True, eq=False)
class Frame(_Secret):
    """One compressed tensor.

    A pickle of a frame does not contain its key: the frame that comes back has none. The same
    holds for `vars`, `repr` and `dataclasses.asdict`; `dataclasses.replace` and copies keep it.

    Attributes
    ----------
    codec : Codec
        With every ``auto`` resolved.
    dtype : str
        Dtype of the tensor: "float32", "float16", "bfloat16" or "float64"; with the codec ``raw``
        also "int8" to "int64", "uint8" to "uint64", or "bool".
    shape : tuple of int
        In elements.
    payload : Payload
    name : str or None
        Of the tensor.
    key : bytes or None
        Of the tag that the frame bears.
    """

    codec: Codec
    dtype: str
    shape: tuple[int, ...]
    payload: Payload
    name: str | None = None
    if TYPE_CHECKING:
        key: bytes | None = None
    else:  # no field: what iterates over those must not find it
        key: InitVar[bytes | None] = None

    def __post_init__(self, key: bytes | None = None) -> None:  # noqa: RUF033
        """Bind the codec to dtype and shape; raise `Corrupt` for another payload's seek table."""
        object.__setattr__(self, "_key", key)
        codec = self.codec._of_dtype(self.dtype)._of_shape(self.shape)
        object.__setattr__(self, "codec", codec)
        if self.dtype in primitives.INTEGERS:
            object.__setattr__(self, "payload", self.payload._replace(codec=codec))
        if self.seek is not None:
            count = self.codec.seek_count(self.size)
            self.seek.check(self.codec.seek_blocks, count, self.payload.nbits)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle contains: all but the key."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a frame from a pickle; it has no key."""
        vars(self).update(state)
        object.__setattr__(self, "_key", None)

    def __copy__(self) -> Frame:
        """Return a copy, key included."""
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Frame:
        """Return a copy whose payload has memory of its own, key included."""
        return replace(self, payload=copy.deepcopy(self.payload, memo))

    @property
    def seek(self) -> SeekTable | None:
        """Seek table of the payload."""
        return self.payload.seek

    @property
    def size(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the frame."""
        tag = primitives.TAG_NBYTES if self.key is not None else 0
        return len(self.header()) + self.payload.data.size + CHECKSUM_NBYTES + tag

    def header(self) -> bytes:
        """Return the bytes before the payload, their checksum included."""
        name = None if self.name is None else primitives.encode_name(self.name)
        parameters = self.codec.write_parameters()
        scalars = self.codec.write_scalars(self.payload.scalars)
        flags = primitives.HAS_NAME * (name is not None)
        flags |= primitives.HAS_SEEK * (self.seek is not None)
        flags |= primitives.HAS_TAG * (self.key is not None)
        written = header.write(
            {
                "magic": [primitives.MAGIC],
                "version": [primitives.VERSION],
                "flags": [flags],
                "codec": [self.codec.id],
                "dtype": [primitives.DTYPE_CODES[self.dtype]],
                "ndim": [len(self.shape)],
                "size": list(self.shape),
                "name length": [] if name is None else [len(name)],
                "name": [] if name is None else [name],
                "parameters length": [len(parameters)],
                "parameters": [parameters],
                "scalars length": [len(scalars)],
                "scalars": [scalars],
                "payload bits": [self.payload.nbits],
                "seek table": [] if self.seek is None else [self.seek],
            }
        )
        return written + crc32c(written)

    def to_bytes(self) -> bytes:
        """Return the frame's bytes."""
        return joined(self.parts())

    def drained(self) -> bytes:
        """Return the frame's bytes; release the payload, which nobody else may read, meanwhile."""
        parts = self.parts()
        data = self.payload.data
        if type(data) is np.ndarray and data.flags.c_contiguous:
            parts[1] = Drainable(data)
        return joined(parts)

    def parts(self) -> list[Any]:
        """Return the frame's bytes in pieces: header, payload, checksum and tag."""
        payload = np.ascontiguousarray(host(self.payload.data))
        parts = [self.header(), payload.data, crc32c(payload)]
        if self.key is not None:
            parts.append(tag_of(self.key, parts))
        return parts

    def with_seek(self, log2_block: int | None = None) -> Frame:
        """Return the frame with a seek table, which decoding its payload finds.

        Parameters
        ----------
        log2_block : int, optional
            Elements or sent values in a block, 0 to 62; with rANS 5 to 18. Default: as an encoder
            chooses, 12, and with rANS 16 or, where that table would pass 1 % of the payload, 18.

        Returns
        -------
        Frame
            With the same payload and key; the frame itself if it has such a table, or can have
            none because its codec has no blocks or it sends nothing.

        Raises
        ------
        FormatError
            If the payload cannot be decoded.
        ParameterError
        """
        blocks = self.codec.seek_blocks
        if log2_block is None:
            log2s = usual_log2s(blocks or "elements")
        else:
            log2s = (check_log2(log2_block, blocks or "elements"),)
        if blocks is None or not self.size:
            return self
        table = self._table_of(log2s)
        if table is self.seek or not table.offsets[-1]:
            return self
        return replace(self, payload=self.payload._replace(seek=table))

    def _table_of(self, log2s: tuple[int, ...]) -> SeekTable:
        """Return the first table that is worth its bytes; if none is, the smallest."""
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
        """Return the frame without a seek table: the same tensor, key included."""
        return replace(self, payload=self.payload._replace(seek=None)) if self.seek else self

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview,
        *,
        limits: Limits | None = None,
        key: bytes | None = None,
    ) -> Frame:
        """Read a frame; nothing may follow it.

        Parameters
        ----------
        data : bytes-like
            The payload of the frame stays a view of it.
        limits : Limits, optional
            What a stranger's frame may make decoding allocate; default ``Limits()``.
        key : bytes, optional
            The frame must then bear the tag of this key.

        Raises
        ------
        FormatError
        """
        frame, end = cls.read(data, 0, Limits.given(limits), key)
        if end != len(memoryview(data).cast("B")):
            raise Corrupt("bytes follow the frame", offset=end)
        return frame

    @classmethod
    def read(
        cls, data: bytes | bytearray | memoryview, start: int, limits: Limits, key: bytes | None
    ) -> tuple[Frame, int]:
        """Read the frame that begins at byte `start`; return it and the byte behind it.

        See `from_bytes`.
        """
        reader = Reader(data, start)
        known = header.read(reader)
        if bytes(reader.take(CHECKSUM_NBYTES)) != crc32c(
            reader.data[start : reader.at - CHECKSUM_NBYTES]
        ):
            raise Corrupt("the header's checksum is wrong", offset=reader.at - CHECKSUM_NBYTES)
        kind = by_id(known["codec"][0])  # before what else may be wrong
        dtype = dtype_named(known["dtype"][0], start + 6, kind)
        shape = tuple(known["size"])
        n, nbits = math.prod(shape), known["payload bits"][0]
        payload_data = np.frombuffer(reader.take(-(-nbits // 8)), np.uint8)
        if bytes(reader.take(CHECKSUM_NBYTES)) != crc32c(payload_data):
            raise Corrupt("the payload's checksum is wrong", offset=reader.at - CHECKSUM_NBYTES)
        signed = reader.data[start : reader.at]
        has_tag = known["flags"][0] & primitives.HAS_TAG
        tag = bytes(reader.take(primitives.TAG_NBYTES)) if has_tag else None
        key = check_key(key)
        check_tag(tag, key, signed)
        limits.check("the frame", n, n * primitives.ITEMSIZE[dtype], reader.at - start)
        check_shape(shape, start + 8)
        name = next(map(read_name, known["name"]), None)
        codec, values = header.codec_of(known, dtype)
        table = next((s.table(codec.seek_count(n)) for s in known["seek table"]), None)
        payload = Payload(codec, values, payload_data, nbits, table)
        return cls(codec, dtype, shape, payload, name, key), reader.at

    def decode(self, *, like: Any = None, out: Any = None) -> Any:
        """Decode the tensor; see `gcodec.decode`."""
        if like is not None and out is not None:
            raise ParameterError("like and out: give one of them")
        with once():
            return self._decode(like, out)

    def _decode(self, like: Any, out: Any) -> Any:
        target = None
        dtype = self.dtype
        if out is not None:
            target = writable(out, "out", self.dtype, self.shape)
        if like is not None:
            dtype = dtype_like(like, self.shape, self.dtype)
        if dtype in primitives.INTEGERS:
            return self._decode_integers(like, out, target)
        device = device_of(target) if like is None else device_like(like)
        payload = self._payload_on(device)
        if target is not None and dtype == "float32" and is_flat(target):
            self.codec._decode(payload, self.size, target.reshape(-1))
            return out
        if device is None:
            flat = target.reshape(-1) if target is not None and is_flat(target) else None
            array = self.codec._decode_as(self.dtype, payload, self.size, flat)
            if flat is not None:
                return out
        else:
            room = device.empty(self.size, np.float32) if self.codec.symbols_on_host else None
            values = self.codec._decode(payload, self.size, room)
            if target is None:
                values = outlet(convert.round_to(values, self.dtype), dtype)
                return as_library_of(values.reshape(self.shape), like)
            array = outlet(values, self.dtype)
        array = array.reshape(self.shape)
        if target is not None:
            target[...] = array
            return out
        if dtype != self.dtype:
            array = outlet(intake(array).values, dtype).reshape(self.shape)
        return array if like is None else as_library_of(array, like)

    def _decode_integers(self, like: Any, out: Any, target: Any) -> Any:
        """Decode on the host, and copy the result to the device of `like` or `target`."""
        payload = self._payload_on(None)
        device = device_of(target) if like is None else device_like(like)
        if target is not None and device is None and is_flat(target):
            self.codec._decode(payload, self.size, target.reshape(-1))
            return out
        array = self.codec._decode(payload, self.size)
        if device is not None:
            array = device.to_device(array if target is None else array.view(target.dtype))
        array = array.reshape(self.shape)
        if target is None:
            return array if like is None else as_library_of(array, like)
        target[...] = array
        return out

    def _payload_on(self, device: Device | None) -> Payload:
        """Return the payload with its data on a device, or for None on the host."""
        payload = self.payload
        if device is not None and not self.codec.on_device:
            raise no_twin(str(self.codec))
        if self.codec.symbols_on_host:
            device = None
        if device_of(payload.data) is device:
            return payload
        if device is None:
            return payload._replace(data=host(payload.data))
        return payload._replace(data=copied(device, payload.data))

    def decode_range(self, start: int, stop: int) -> np.ndarray:
        """Decode some of the flattened tensor; see `gcodec.decode_range`."""
        start = check_integer("start", start, 0, self.size, f"an integer from 0 to {self.size}")
        allowed = f"an integer from start={start} to {self.size}"
        stop = check_integer("stop", stop, start, self.size, allowed)
        values = self.codec._decode_range(self.payload, self.size, start, stop)
        return outlet(values, self.dtype)

    def decode_sparse(self) -> tuple[np.ndarray, np.ndarray]:
        """Decode the elements that were sent; see `gcodec.decode_sparse`."""
        positions, values = self.codec._decode_sparse(self.payload, self.size)
        return positions, outlet(values, self.dtype)

    def decode_add(self, acc: Any, scale: float = 1.0) -> None:
        """Add ``scale`` times the tensor to `acc`; see `gcodec.decode_add`."""
        if self.dtype in primitives.INTEGERS:
            allowed = (
                f"one of {', '.join(primitives.FLOATS)}; use decode for integers and booleans"
            )
            raise ParameterError.of("frame.dtype", self.dtype, allowed)
        scale = check_number("scale", scale)
        target = writable(acc, "acc", "float32", self.shape)
        device = device_of(target)
        with once():
            symbols = self.codec._unpack(self._payload_on(device), self.size)
        flat = (target if device else np.require(target, requirements=["C", "A"])).reshape(-1)
        with np.errstate(all="ignore"):
            self.codec._dequantize_add(symbols, self.dtype, np.float32(scale), flat)
        if not is_flat(target):
            target[...] = flat.reshape(self.shape)


# A dataclass takes the value in the body of the class for a parameter's default.
Frame.key = property(lambda frame: frame._key)  # type: ignore[assignment]


def dtype_named(code: int, at: int, codec: type[Codec] | None = None) -> str:
    """Return the dtype that a code stands for.

    Parameters
    ----------
    code : int
    at : int
        Offset of the code in bytes, for the error.
    codec : subclass of Codec, optional
        Codec of the frame. Few codecs have frames of integers and booleans.

    Raises
    ------
    Unsupported
    """
    if code not in _DTYPE_NAMES:
        raise Unsupported(f"dtype {code} is not known to this release", at)
    dtype = _DTYPE_NAMES[code]
    if dtype in primitives.INTEGERS and codec is not None and not codec.takes_integers:
        text = f"dtype {code}, {dtype}, is not known to this release in frames of {codec.name}"
        raise Unsupported(text, at)
    return dtype


def check_shape(shape: tuple[int, ...], at: int) -> None:
    """Raise `Corrupt` for sizes, from byte `at` on, that no empty array has."""
    if 0 in shape and math.prod(filter(None, shape)) >= _ADDRESSABLE:
        raise Corrupt("no array has such a shape", at)


def read_name(raw: memoryview) -> str:
    """Return the name that is UTF-8, or raise `Corrupt`."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt("the name is not UTF-8") from error


def crc32c(data: Any) -> bytes:
    """Return the checksum of bytes or an array, as it is written."""
    # The library takes bytes and NumPy arrays, but no memoryview.
    array = np.frombuffer(data, np.uint8) if isinstance(data, memoryview) else data
    return int(google_crc32c.value(array)).to_bytes(CHECKSUM_NBYTES, "little")
