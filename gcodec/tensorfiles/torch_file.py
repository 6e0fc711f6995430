"""Read the tensors of a file of torch.save, without PyTorch and without running code of the file.

A pickle is a program, and Python's own unpickler calls every function that it names. The
interpreter in this module implements the opcodes of protocol 2 that torch.save writes. It creates
only containers, scalars, strings and inert records of tensors. `GLOBALS` lists the names that a
pickle may contain.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from zipfile import ZipInfo

import numpy as np

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.tensorfiles.archive import Archive
from gcodec.tensorfiles.entries import (
    MAX_ENTRIES,
    READABLE,
    Array,
    Entry,
    FileDump,
    element_count,
    loadable,
    native,
    shown,
)

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
_DTYPES = frozenset(
    f"torch.{name}"
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
)


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
class Global:
    """Name of a class or function in the pickle."""

    name: str


@dataclass(eq=False)
class Mapping:
    """Items of a dict or OrderedDict."""

    # A list, because keys of a pickle may be unhashable, or deliberately slow to hash.
    items: list[tuple[object, object]] = field(default_factory=list)


CALLS = frozenset(
    {
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "collections.OrderedDict",
        "torch.Size",
    }
)
"""Functions that a pickle may call; see `call`."""

GLOBALS = CALLS | STORAGES.keys() | _DTYPES
"""All names that a pickle may contain."""


def call(function: str, args: tuple[object, ...]) -> object:
    """Return the record that represents the result of a function in `CALLS`.

    Raises
    ------
    Corrupt
        If the function does not accept these arguments.
    Unsupported
        If a tensor is a conjugate or negated view.
    """
    match function, args:
        case "torch._utils._rebuild_tensor_v2", (
            (Storage(dtype=str(dtype)) as storage, offset, shape, stride, _, _, *flags)
        ) if len(flags) < 2:
            return _tensor(storage, dtype, offset, shape, stride, flags)
        case "torch._utils._rebuild_tensor_v3", (
            (Storage(dtype=None) as storage, offset, shape, stride, _, _, Global(name), *flags)
        ) if len(flags) < 2 and name in _DTYPES:
            return _tensor(storage, name.removeprefix("torch."), offset, shape, stride, flags)
        case "torch._utils._rebuild_parameter", (Tensor() as tensor, _, _):
            return tensor
        case "collections.OrderedDict", ():
            return Mapping()
        case "torch.Size", (shape,):
            return _counts(shape)
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
    tensor = Tensor(storage, dtype, offset, _counts(shape), _counts(stride))
    if len(tensor.shape) != len(tensor.stride):
        raise Corrupt("a tensor of the pickle has different numbers of dimensions and strides")
    return tensor


def _counts(value: object) -> tuple[int, ...]:
    """Check a shape or a stride."""
    counts = value if isinstance(value, tuple) else (None,)
    if not all(type(n) is int and 0 <= n < 2**63 for n in counts):
        raise Corrupt("a tensor of the pickle has a bad shape or stride")
    return counts


_MAX_OPCODES = 5_000_000
_MAX_STACK = 1_000_000
_MAX_MEMO = 1_000_000
_MAX_TEXT = 1 << 20
_MAX_GLOBAL = 256
_MAX_DEPTH = 100
_MAX_VISITS = 1_000_000
_MAX_NAME = 4096


class _Machine:
    """Stack machine that runs the opcodes of a pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        if self.take(2) != b"\x80\x02":
            raise Unsupported(
                "the pickle is not of protocol 2: save again with torch.save's default"
            )
        for _ in range(_MAX_OPCODES):
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                value = self.pop()
                if self.stack or self.marks or self.at != len(self.data):
                    raise self.corrupt("pickle has values or bytes left at its end")
                return value
            step = _STEPS.get(code)
            if step is None:
                kind = Unsafe if code in _UNSAFE else Unsupported
                raise kind(f"pickle opcode {code:#04x} is not one of torch.save's", self.at - 1)
            step(self)
            if len(self.stack) > _MAX_STACK or len(self.memo) > _MAX_MEMO:
                raise LimitExceeded("pickle needs too deep a stack, or too many memos", self.at)
        raise LimitExceeded(f"pickle of more than {_MAX_OPCODES} opcodes")

    def corrupt(self, message: str) -> FormatError:
        return Corrupt(message, self.at)

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise Truncated("pickle ends too early", len(self.data))
        self.at += size
        return part

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        self.top()
        return self.stack.pop()

    def top(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self.corrupt("pickle pops from an empty stack")
        return self.stack[-1]

    def pop_marked(self) -> list[object]:
        if not self.marks:
            raise self.corrupt("pickle has no matching mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def mark(self) -> None:
        self.marks.append(len(self.stack))
        if len(self.marks) > _MAX_STACK:
            raise LimitExceeded("pickle needs too many marks", self.at)

    def text(self, size: int) -> str:
        if size > _MAX_TEXT:
            raise LimitExceeded(f"pickle has a string of {size} bytes, more than {_MAX_TEXT}")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.corrupt("pickle has a string that is not UTF-8") from None

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + _MAX_GLOBAL)
        if end < 0:
            raise self.corrupt("pickle has an endless or unfinished name")
        text = self.text(end - self.at)
        self.at += 1
        return text

    def find_global(self) -> None:
        name = f"{self.line()}.{self.line()}"
        if name not in GLOBALS:
            raise Unsafe(f"the pickle names {shown(name)}, which is not part of a tensor")
        self.push(Global(name))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(args, tuple):
            raise self.corrupt("pickle calls an object that is not a function")
        if function.name not in CALLS:
            raise Unsafe(f"the pickle calls {shown(function.name)}", self.at)
        self.push(call(function.name, args))

    def load_storage(self) -> None:
        match self.pop():
            case ("storage", Global(name=name), str(key), str(), int(numel)) if numel >= 0:
                if name not in STORAGES:
                    raise self.corrupt(f"pickle has a storage of type {shown(name)}")
                self.push(Storage(STORAGES[name], key, numel))
            case _:
                raise self.corrupt("pickle has a persistent id that is not a storage")

    def build(self) -> None:
        # The OrderedDict of a state_dict has an attribute with module versions, which is ignored.
        self.pop()
        if not isinstance(self.top(), Mapping):
            raise Unsafe("the pickle sets the state of something other than a dict", self.at)

    def append(self, values: list[object]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise self.corrupt("pickle appends to an object that is not a list")
        target.extend(values)

    def set_items(self, values: list[object]) -> None:
        target = self.top()
        if not isinstance(target, Mapping) or len(values) % 2:
            raise self.corrupt("pickle sets items of an object that is not a dict, or a key alone")
        target.items.extend(zip(values[::2], values[1::2], strict=True))

    def last(self, count: int) -> list[object]:
        return [self.pop() for _ in range(count)][::-1]

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise self.corrupt("pickle reads a memo that it never wrote")
        self.push(self.memo[index])


_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("}"): lambda m: m.push(Mapping()),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("J"): lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
    ord("K"): lambda m: m.push(m.uint(1)),
    ord("M"): lambda m: m.push(m.uint(2)),
    0x8A: lambda m: m.push(int.from_bytes(m.take(m.uint(1)), "little", signed=True)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: m.push(m.text(m.uint(4))),
    ord("("): _Machine.mark,
    ord("t"): lambda m: m.push(tuple(m.pop_marked())),
    0x85: lambda m: m.push(tuple(m.last(1))),
    0x86: lambda m: m.push(tuple(m.last(2))),
    0x87: lambda m: m.push(tuple(m.last(3))),
    ord("a"): lambda m: m.append(m.last(1)),
    ord("e"): lambda m: m.append(m.pop_marked()),
    ord("s"): lambda m: m.set_items(m.last(2)),
    ord("u"): lambda m: m.set_items(m.pop_marked()),
    ord("q"): lambda m: m.put(m.uint(1)),
    ord("r"): lambda m: m.put(m.uint(4)),
    ord("h"): lambda m: m.get(m.uint(1)),
    ord("j"): lambda m: m.get(m.uint(4)),
    ord("c"): _Machine.find_global,
    ord("R"): _Machine.call,
    ord("Q"): _Machine.load_storage,
    ord("b"): _Machine.build,
}

# INST, OBJ, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, EXT1, EXT2, EXT4, which call or import.
_UNSAFE = frozenset({0x69, 0x6F, 0x81, 0x92, 0x93, 0x82, 0x83, 0x84})


def read_tensors(data: bytes) -> list[tuple[str, Tensor]]:
    """List the tensors that a pickle of torch.save describes.

    Parameters
    ----------
    data : bytes
        Pickle.

    Returns
    -------
    list of (str, Tensor)
        Names and tensors in the order of the pickle. A name joins the keys of nested containers
        with "."; a tensor that is the whole pickle is named "tensor". Other values are omitted.

    Raises
    ------
    Unsafe
        If the pickle names or calls an object that is not part of a tensor.
    FormatError
        If the pickle is damaged, truncated, of another protocol, or too large.
    """
    root = _Machine(data).run()
    if isinstance(root, Tensor):
        return [("tensor", root)]
    tensors: list[tuple[str, Tensor]] = []
    for name, tensor in _walk(root, "", {id(root)}, iter(range(_MAX_VISITS))):
        tensors.append((name, tensor))
        if len(tensors) > MAX_ENTRIES:
            raise LimitExceeded(f"more than {MAX_ENTRIES} tensors in one file")
    return tensors


def _walk(
    container: object, prefix: str, path: set[int], visits: Iterator[int]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors in a container; `path` identifies it and those around it."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(container, Mapping):
        items = container.items
    elif isinstance(container, (list, tuple)):
        items = enumerate(container)
    for key, value in items:
        if next(visits, None) is None:
            raise LimitExceeded(f"the pickle holds more than {_MAX_VISITS} values")
        if not isinstance(value, (Tensor, Mapping, list, tuple)):
            continue
        if key is not None and not isinstance(key, (str, int, float)):
            raise Unsupported("a dict of the pickle has a key that is neither text nor a number")
        name = f"{prefix}{key}"
        if len(name) > _MAX_NAME:
            raise LimitExceeded(f"a tensor's name has more than {_MAX_NAME} characters")
        if isinstance(value, Tensor):
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
