"""The tag of a frame: a keyed BLAKE2b-128 of all bytes before it."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.wire import TAG_NBYTES


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
