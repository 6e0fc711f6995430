"""Read the tensors of a file of torch.save, without PyTorch."""

from __future__ import annotations

import sys
from zipfile import ZipInfo

import numpy as np

from gcodec.errors import Corrupt, LimitExceeded, Unsupported
from gcodec.tensorfiles.archive import Archive
from gcodec.tensorfiles.entries import (
    READABLE,
    Array,
    Entry,
    FileDump,
    element_count,
    loadable,
    native,
    shown,
)
from gcodec.tensorfiles.torch_pickle import read_tensors
from gcodec.tensorfiles.torch_records import Tensor

_MAX_PICKLE = 64 << 20
_ADVICE = "load it with PyTorch and save its tensors again with torch.save"


class TorchDump(FileDump):
    """A zip archive of torch.save: a pickle that describes tensors, and a member per storage."""

    format = "pt"

    def _read_header(self) -> None:
        # Files of PyTorch before 1.6 and of pickle.dump begin like a pickle.
        if self._file.read(1) == b"\x80":
            raise Unsupported(f"a file of PyTorch before 1.6, or a bare pickle: {_ADVICE}")
        self._archive = Archive(self._file)
        members = self._archive.members
        roots = [
            name.removesuffix("data.pkl")
            for name in members
            if name.count("/") == 1 and name.endswith("/data.pkl")
        ]
        if len(roots) != 1:
            raise Corrupt(f"not a file of torch.save: {len(roots)} members named data.pkl")
        self._root = roots[0]
        if f"{self._root}constants.pkl" in members or any(
            name.startswith(f"{self._root}code/") for name in members
        ):
            raise Unsupported(f"a TorchScript archive: {_ADVICE}")
        order = self._small_member("byteorder", 16) or b"little"
        if order not in (b"little", b"big"):
            raise Corrupt(f"unknown byte order {shown(order)}")
        self._swapped = order.decode() != sys.byteorder
        tensors = read_tensors(self._small_member("data.pkl", _MAX_PICKLE))
        for name, tensor in tensors:
            self._check(f"tensor {shown(name)}", tensor)
        self._tensors = dict(tensors)
        self._set_entries(Entry(name, tensor.dtype, tensor.shape) for name, tensor in tensors)

    def _small_member(self, name: str, limit: int) -> bytes:
        member = self._archive.members.get(self._root + name)
        if member is None:
            return b""
        if member.file_size > limit:
            raise LimitExceeded(f"member {name!r} of {member.file_size} bytes, more than {limit}")
        return self._archive.open(member).read(member.file_size)

    def _storage(self, description: str, tensor: Tensor) -> ZipInfo:
        member = self._archive.members.get(f"{self._root}data/{tensor.storage.key}")
        if member is None:
            raise Corrupt(f"{description} has no storage in the archive")
        return member

    def _check(self, description: str, tensor: Tensor) -> None:
        """Raise `FormatError` unless a tensor lies within its storage."""
        member = self._storage(description, tensor)
        stored = READABLE[tensor.storage.dtype or "uint8"]
        if member.file_size != tensor.storage.numel * stored.itemsize:
            raise Corrupt(
                f"{description}: its storage has {member.file_size} bytes, "
                f"not those of {tensor.storage.numel} elements"
            )
        dtype = READABLE.get(tensor.dtype)
        itemsize = 1 if dtype is None else dtype.itemsize
        elements = element_count(description, tensor.shape, itemsize)
        if elements and (tensor.offset + tensor.span) * itemsize > member.file_size:
            raise Corrupt(f"{description} reaches beyond its storage")

    def _load(self, entry: Entry) -> Array:
        description, dtype, elements = loadable(entry)
        if not elements:
            return np.empty(entry.shape, dtype)
        tensor, itemsize = self._tensors[entry.name], dtype.itemsize
        member = self._storage(description, tensor)
        # A view with stride 0 is larger than its storage; other views skip elements.
        nbytes = max(tensor.span, elements) * itemsize
        self.limits.check(description, elements, nbytes, member.compress_size)
        reader = self._archive.open(member)
        # The checksum covers the whole storage, so it cannot be verified after a skip.
        if tensor.offset:
            reader.skip(tensor.offset * itemsize)
        data = reader.read_array(tensor.span * itemsize)
        strides = tuple(
            step * itemsize if n > 1 else 0
            for n, step in zip(tensor.shape, tensor.stride, strict=True)
        )
        view: Array = np.ndarray(tensor.shape, dtype, data, 0, strides)
        if not view.flags.forc:
            # The caller's array must not have elements that share memory.
            view = view.copy()
        return native(view.byteswap() if self._swapped else view)
