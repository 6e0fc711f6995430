"""Checksums against damage, and tags against forgery."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

import google_crc32c
import numpy as np

from gcodec.arrays.protocols import BytesLike
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.kernels.numeric.cache_lines import prefetch_lines
from gcodec.wire.primitives import TAG_NBYTES, Reader

CHECKSUM_NBYTES = 4
_TILE = 1 << 18  # bytes that stay in a cache
_LEAST_TILED = 1 << 22  # bytes of an array that a cache probably does not contain


def crc32c(data: BytesLike) -> bytes:
    """Return the CRC-32C of bytes or an array, as the frame stores it."""
    # The library takes bytes and NumPy arrays, but no memoryview.
    array = np.frombuffer(data, np.uint8) if isinstance(data, memoryview) else data
    return int(google_crc32c.value(array)).to_bytes(CHECKSUM_NBYTES, "little")


def crc32c_from_memory(array: np.ndarray) -> bytes:
    """Return the CRC-32C of an array of bytes; caches might not contain a large one."""
    if array.size < _LEAST_TILED:
        return crc32c(array)
    checksum = RunningChecksum()
    checksum.update(array)
    return bytes(checksum.stored)


class RunningChecksum:
    """CRC-32C of bytes that arrive in chunks.

    Attributes
    ----------
    stored : bytearray
        Checksum of the chunks so far, as the frame stores it.
    """

    def __init__(self) -> None:
        self._value = 0
        self.stored = bytearray(CHECKSUM_NBYTES)

    def update(self, chunk: np.ndarray) -> None:
        """Continue with a chunk, which caches might not contain.

        On some processors, the library reads memory at a fourth of the memory's speed, but caches
        at up to their own. So each tile is brought to the cache first.
        """
        for start in range(0, chunk.size, _TILE):
            tile = chunk[start : start + _TILE]
            prefetch_lines(tile)
            self._value = google_crc32c.extend(self._value, tile)
        self.stored[:] = self._value.to_bytes(CHECKSUM_NBYTES, "little")


def check_crc(reader: Reader, checksum: bytes, part: str) -> None:
    """Read the stored checksum of a part; raise `Corrupt` if it differs from the computed one."""
    if reader.take(CHECKSUM_NBYTES) != checksum:
        raise Corrupt(f"the {part}'s checksum is wrong", offset=reader.at - CHECKSUM_NBYTES)


def check_key(key: object) -> bytes | None:
    """Return the key of a tag, or None; raise `ParameterError` if the key is invalid."""
    if key is None:
        return None
    if not isinstance(key, bytes):
        kind = type(key).__name__
        raise ParameterError(f"key is of type {kind}: must be bytes, from 1 to 64 of them")
    if not 1 <= len(key) <= 64:
        raise ParameterError.of("key", "…", "1 to 64 bytes")  # the message keeps the secret
    return key


def tag_of(key: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    """Return the tag of the concatenation of parts."""
    digest = hashlib.blake2b(key=key, digest_size=TAG_NBYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def check_tag(tag: bytes | None, key: bytes | None, signed: memoryview) -> None:
    """Raise `FormatError` unless `tag` is the tag of `signed` under `key`, or both are None."""
    if key is None:
        if tag is not None:
            raise Unsupported("the frame is authenticated: pass its key as key=")
        return
    if tag is None or not hmac.compare_digest(tag, tag_of(key, [signed])):
        raise Corrupt("the frame does not bear the tag of this key")
