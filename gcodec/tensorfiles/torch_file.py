"""Read the tensors of a file of torch.save, without PyTorch and without running code of the file.

`DIALECT` lists the names that a pickle may contain; see `gcodec.tensorfiles.unpickler`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from zipfile import ZIP_STORED, ZipInfo

import numpy as np

from gcodec.errors import Corrupt, LimitExceeded, Unsupported
from gcodec.limits import MAX_TENSORS, Limits
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
from gcodec.tensorfiles.unpickler import Dialect, Global, Mapping, dimensions, unpickle

STORAGES: dict[str, str | None] = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.storage.UntypedStorage": None,
}
DTYPES = frozenset(
    f"torch.{name}"
    for name in (
        *(*READABLE, "complex32"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
)
"""Names of the dtypes of PyTorch."""


@dataclass(frozen=True, eq=False)
class Storage:
    """Consecutive elements in the archive, or bytes if `dtype` is None."""

    dtype: str | None
    key: str
    numel: int


@dataclass(frozen=True, eq=False)
class Tensor:
    """Strided view of a storage. Offset and strides count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def span(self) -> int:
        """Number of elements from the first to the last one of a view that is not empty."""
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Tensor of a sparse layout such as "torch.sparse_coo", which is not read."""

    layout: str


@dataclass(frozen=True, eq=False)
class _Layout:
    name: str


_FUNCTIONS = frozenset(
    {
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_sparse_tensor",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "torch.Size",
    }
)


def _call(function: str, args: tuple[object, ...]) -> object:
    """Return the record that represents the result of a function in `_FUNCTIONS`."""
    match function, args:
        case "torch._utils._rebuild_tensor_v2", (
            (Storage(dtype=str(dtype)) as storage, offset, shape, stride, _, _, *flags)
        ) if len(flags) < 2:
            return _tensor(storage, dtype, offset, shape, stride, flags)
        case "torch._utils._rebuild_tensor_v3", (
            (Storage(dtype=None) as storage, offset, shape, stride, _, _, Global(name), *flags)
        ) if len(flags) < 2 and name in DTYPES:
            return _tensor(storage, name.removeprefix("torch."), offset, shape, stride, flags)
        case "torch._utils._rebuild_parameter", ((Tensor() | SparseTensor()) as tensor, _, _):
            return tensor
        case "torch._utils._rebuild_sparse_tensor", (_Layout(name), tuple()):
            return SparseTensor(name)
        case "torch.serialization._get_layout", (str(name),):
            return _Layout(name)
        case "collections.OrderedDict", ():
            return Mapping()
        case "torch.Size", (shape,):
            return dimensions(shape)
    raise Corrupt(f"the pickle calls {function} with wrong arguments")


def _tensor(
    storage: Storage,
    dtype: str,
    offset: object,
    shape: object,
    stride: object,
    flags: list[object],
) -> Tensor:
    if not (type(offset) is int and 0 <= offset < 2**63):
        raise Corrupt("a tensor of the pickle has a bad offset")
    for flag in flags:
        # With the flag "conj" or "neg", the stored values differ from the tensor's values.
        if not isinstance(flag, Mapping) or flag.items:
            raise Unsupported("a tensor is a conjugate or negated view: save its resolve_conj()")
    tensor = Tensor(storage, dtype, offset, dimensions(shape), dimensions(stride))
    if len(tensor.shape) != len(tensor.stride):
        raise Corrupt("a tensor of the pickle has different numbers of dimensions and strides")
    return tensor


def _storage(persistent_id: object) -> Storage:
    """Return the storage that a persistent id names."""
    match persistent_id:
        case ("storage", Global(name=name), str(key), str(), int(numel)) if numel >= 0:
            if name not in STORAGES:
                raise Corrupt(f"pickle has a storage of type {shown(name)}")
            return Storage(STORAGES[name], key, numel)
    raise Corrupt("pickle has a persistent id that is not a storage")


DIALECT = Dialect(
    writer="torch.save",
    protocols=(2,),
    constants=DTYPES | STORAGES.keys(),
    functions=_FUNCTIONS,
    call=_call,
    storage=_storage,
)
"""Pickles of torch.save."""

_MAX_DEPTH = 100
_MAX_VISITS = 1_000_000
_MAX_NAME = 4096


def read_tensors(data: bytes) -> list[tuple[str, Tensor | SparseTensor]]:
    """List the tensors that a pickle of torch.save describes.

    Parameters
    ----------
    data : bytes
        Pickle.

    Returns
    -------
    list of (str, Tensor or SparseTensor)
        Names and tensors in the order of the pickle. A name joins the keys of nested containers
        with "."; a tensor that is the whole pickle is named "tensor". Other values are omitted.

    Raises
    ------
    Unsafe
        If the pickle names or calls an object that is not part of a tensor.
    FormatError
        If the pickle is damaged, truncated, of another protocol, or too large.
    """
    root = unpickle(data, DIALECT)
    if isinstance(root, (Tensor, SparseTensor)):
        return [("tensor", root)]
    tensors: list[tuple[str, Tensor | SparseTensor]] = []
    for name, tensor in _walk(root, "", {id(root)}, iter(range(_MAX_VISITS))):
        tensors.append((name, tensor))
        if len(tensors) > MAX_TENSORS:
            raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one file")
    return tensors


def _walk(
    container: object, prefix: str, path: set[int], visits: Iterator[int]
) -> Iterator[tuple[str, Tensor | SparseTensor]]:
    """Yield the names and tensors in a container; `path` identifies it and those around it."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(container, Mapping):
        items = container.items
    elif isinstance(container, (list, tuple)):
        items = enumerate(container)
    for key, value in items:
        if next(visits, None) is None:
            raise LimitExceeded(f"the pickle holds more than {_MAX_VISITS} values")
        if not isinstance(value, (Tensor, SparseTensor, Mapping, list, tuple)):
            continue
        if key is not None and not isinstance(key, (str, int, float)):
            raise Unsupported("a dict of the pickle has a key that is neither text nor a number")
        name = f"{prefix}{key}"
        if len(name) > _MAX_NAME:
            raise LimitExceeded(f"a tensor's name has more than {_MAX_NAME} characters")
        if isinstance(value, (Tensor, SparseTensor)):
            yield name, value
            continue
        if id(value) in path:
            raise Corrupt("the pickle has a container that contains itself")
        if len(path) >= _MAX_DEPTH:
            raise LimitExceeded(f"containers nested more than {_MAX_DEPTH} deep")
        path.add(id(value))
        yield from _walk(value, f"{name}.", path, visits)
        path.discard(id(value))


_MAX_PICKLE = 64 << 20
_ADVICE = "load it with PyTorch and save its tensors again with torch.save"


class TorchArchive:
    """A zip archive of torch.save: a pickle that describes tensors, and a member per storage.

    Parameters
    ----------
    file : binary file
        Seekable file, from which `load` reads later.
    limits : Limits
        Bounds on each tensor.

    Attributes
    ----------
    entries : list of Entry
        Descriptions of the tensors.
    omitted : dict of str to str
        Names of sparse tensors, and why they are not read.
    """

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._limits = limits
        # Files of PyTorch before 1.6 and of pickle.dump begin like a pickle.
        if file.read(1) == b"\x80":
            raise Unsupported(f"a file of PyTorch before 1.6, or a bare pickle: {_ADVICE}")
        self._archive = Archive(file)
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
        self._tensors: dict[str, Tensor] = {}
        self.entries: list[Entry] = []
        self.omitted: dict[str, str] = {}
        for name, tensor in read_tensors(self._small_member("data.pkl", _MAX_PICKLE)):
            if isinstance(tensor, SparseTensor):
                self.omitted[name] = f"its layout is {shown(tensor.layout)}, and not dense"
                continue
            self._check(f"tensor {shown(name)}", tensor)
            self._tensors[name] = tensor
            self.entries.append(Entry(name, tensor.dtype, tensor.shape))

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

    def load(self, entry: Entry) -> Array:
        """Read one tensor; see `gcodec.tensorfiles.entries.Dump.load`."""
        description, dtype, elements = loadable(entry)
        if not elements:
            return np.empty(entry.shape, dtype)
        tensor, itemsize = self._tensors[entry.name], dtype.itemsize
        member = self._storage(description, tensor)
        start = tensor.offset * itemsize
        # A view with stride 0 is larger than its storage; other views skip elements. Where the
        # storage is compressed, the bytes before the view are unpacked, too.
        unpacked = start if member.compress_type != ZIP_STORED else 0
        nbytes = unpacked + max(tensor.span, elements) * itemsize
        self._limits.check(description, elements, nbytes, member.compress_size)
        reader = self._archive.open(member)
        # The checksum covers the whole storage, so it cannot be verified after a skip.
        if start:
            reader.skip(start)
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


class TorchDump(FileDump):
    """A file of torch.save."""

    format = "pt"

    def _read_header(self) -> None:
        self._archive = TorchArchive(self._file, self.limits)
        self._set_entries(self._archive.entries)
        self.omitted = self._archive.omitted

    def _load(self, entry: Entry) -> Array:
        return self._archive.load(entry)
