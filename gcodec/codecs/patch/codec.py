"""patch: the exact difference of two tensors of the same dtype and shape.

A message contains the digest of the old tensor, the base, and what turns it into the new one: the
positions of the changed elements and the differences of their bit patterns in units of the last
place, both by classes of the old elements. Floats are classified by their exponents, so small
weights, which change often, and large ones, which rarely change, have codes of their own. Where
nothing is saved, the message contains the new elements, little-endian.

Only `gcodec.encode_patch` and `gcodec.apply_patch` use this codec, because both need the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from gcodec.arrays.bit_patterns import check_booleans
from gcodec.codec import Codec, register
from gcodec.codecs.patch import describe, encoder
from gcodec.codecs.patch.digest import DIGEST_NBYTES, digest_of
from gcodec.codecs.patch.message import STORED, Message, PatchSymbols, contexts_of
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.numeric import class_changes
from gcodec.payload import Payload
from gcodec.runtime import Array
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import beside, host
from gcodec.runtime.memory import empty_beside
from gcodec.wire.primitives import DTYPE_CODES, ITEMSIZE

_P = TypeVar("_P", bound="Patch")


@register(id=16, name="patch")
class Patch(Codec):
    """The exact difference of two tensors.

    `gcodec.encode_patch` makes one.
    """

    symbols_type = PatchSymbols
    accepts_all_dtypes = True
    reads_segments = True
    keeps_every_bit = True
    needs_base = True
    has_cuda_kernels = True
    # Dtype of the tensors; `_with_dtype` sets it.
    _dtype: ClassVar[str] = "float32"

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the digest, the form and n elements."""
        return 8 * (DIGEST_NBYTES + 1 + ITEMSIZE[self._dtype] * n)

    def _with_dtype(self: _P, dtype: str) -> _P:
        return self._bound(_dtype=dtype) if dtype in DTYPE_CODES else super()._with_dtype(dtype)

    def _dequantize(self, symbols: PatchSymbols, out: np.ndarray) -> None:
        raise _without_base()

    def _pack(self, symbols: PatchSymbols) -> Payload:
        written = encoder.write(symbols)
        return Payload(self, {}, written.data, written.nbits)

    def _unpack(self, payload: Payload, n: int) -> PatchSymbols:
        return Message.open(payload, n, self._dtype).symbols(self._dtype)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        raise _without_base()

    # --- Methods of `gcodec.patch`

    def difference(self, new: np.ndarray, old: np.ndarray) -> Payload:
        """Return the payload that turns (n,) old bit patterns into new ones.

        Both are on the host or on one device; the payload is on the host.
        """
        symbols = encoder.symbols_of(new, old, self._dtype)
        payload = self._pack(symbols)
        if payload.nbits > self.max_payload_nbits(new.size):
            return self._pack(PatchSymbols(symbols.digest, stored=host(new)))
        return payload

    def apply(
        self, payload: Payload, old: np.ndarray, out: np.ndarray, *, is_fresh: bool = False
    ) -> None:
        """Write the new bit patterns to `out`, which is either `old` itself or another array.

        Both are on the host or on one device, the payload is on the host. Everything is checked
        before `out` changes, unless `is_fresh`: then nobody uses `out` after an error, and it
        receives the old patterns while they are digested.

        Raises
        ------
        FormatError
            If the payload is damaged.
        ParameterError
            If the old patterns are not those of the base.
        """
        message = Message.open(payload, old.size, self._dtype)
        contexts, sizes = contexts_of(self._dtype), None
        if message.head is not None:
            sizes = class_changes.class_sizes(old, contexts, message.head.bounds)
        is_copied = is_fresh and message.form != STORED
        digest = digest_of(old, out if is_copied else None)
        base = resolved(_Base(digest, None if sizes is None else sizes.totals))
        if base.digest != message.digest:
            needed = f"the tensor with the digest {message.digest.hex()}, as the patch needs"
            raise ParameterError(f"base has the digest {base.digest.hex()}: must be {needed}")
        symbols = message.symbols(self._dtype)
        old = out if is_copied else old
        if sizes is None:
            self._write(out, old if symbols.stored is None else beside(symbols.stored, out))
            return
        for kind, (size, own) in enumerate(zip(symbols.sizes, base.sizes.tolist(), strict=False)):
            if size != own:
                raise Corrupt(f"class {kind} has {size} elements, in the base {own}")
        # Only the new elements show whether they are booleans.
        is_apart = self._dtype == "bool" and not is_fresh
        target = empty_beside(old.size, old.dtype, old) if is_apart else out
        places, differences = zip(*symbols.changes, strict=True)
        class_changes.apply(old, contexts, symbols.bounds, sizes, places, differences, target)
        self._write(out, target)

    def _write(self, out: np.ndarray, new: np.ndarray) -> None:
        """Write new bit patterns, after a check of booleans."""
        if self._dtype == "bool":
            check_booleans(new)
        if new is not out:
            out[:] = new

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        yield from describe.fields(walk, n, self._dtype)


class _Base(NamedTuple):
    """What a patch needs to be that of its base.

    Attributes
    ----------
    digest : bytes
    sizes : (k,) int64 array or None
        Number of elements of each class; None if the patch has no classes.
    """

    digest: bytes
    sizes: Array


def _without_base() -> Unsupported:
    """Return the error of functions that have no base."""
    return Unsupported("the frame is a patch: gcodec.apply_patch applies it to its base")
