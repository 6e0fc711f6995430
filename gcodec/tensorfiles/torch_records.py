"""Names that a pickle of torch.save may contain, and the inert records that represent them.

This module imports none of the named objects. Each name stands for a record, or for a function
below that checks its arguments and returns a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gcodec.errors import Corrupt, Unsupported

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


def _counts(value: object) -> tuple[int, ...]:
    """Check a shape or a stride."""
    if not isinstance(value, tuple):
        raise Corrupt("a tensor of the pickle has a shape or stride that is not a tuple")
    counts = tuple(n for n in value if type(n) is int and 0 <= n < 2**63)
    if len(counts) != len(value):
        raise Corrupt("a tensor of the pickle has a bad shape or stride")
    return counts


def _tensor(args: tuple[object, ...], dtype: str | None, flags: tuple[object, ...]) -> Tensor:
    storage, offset, size, stride = args[:4]
    if not isinstance(storage, Storage) or dtype is None:
        raise Corrupt("a tensor of the pickle has no storage, or one without a dtype")
    if not (type(offset) is int and 0 <= offset < 2**63):
        raise Corrupt("a tensor of the pickle has a bad offset")
    for flag in flags:
        # With the flag "conj" or "neg", the stored values differ from the tensor's values.
        if not isinstance(flag, Mapping) or flag.items:
            raise Unsupported("a tensor is a conjugate or negated view: save its resolve_conj()")
    shape, strides = _counts(size), _counts(stride)
    if len(shape) != len(strides):
        raise Corrupt("a tensor of the pickle has different numbers of dimensions and strides")
    return Tensor(storage, dtype, offset, shape, strides)


def _rebuild_tensor_v2(args: tuple[object, ...]) -> Tensor:
    if len(args) not in (6, 7):
        raise Corrupt("_rebuild_tensor_v2 has a wrong number of arguments")
    return _tensor(args, args[0].dtype if isinstance(args[0], Storage) else None, args[6:])


def _rebuild_tensor_v3(args: tuple[object, ...]) -> Tensor:
    if len(args) not in (7, 8):
        raise Corrupt("_rebuild_tensor_v3 has a wrong number of arguments")
    dtype = args[6]
    if not isinstance(dtype, Global) or dtype.name not in _DTYPES:
        raise Corrupt("_rebuild_tensor_v3 has no dtype")
    if isinstance(args[0], Storage) and args[0].dtype is not None:
        raise Corrupt("_rebuild_tensor_v3 has a storage with a dtype of its own")
    return _tensor(args, dtype.name.removeprefix("torch."), args[7:])


def _rebuild_parameter(args: tuple[object, ...]) -> Tensor:
    if len(args) != 3 or not isinstance(args[0], Tensor):
        raise Corrupt("_rebuild_parameter has wrong arguments")
    return args[0]


def _ordered_dict(args: tuple[object, ...]) -> Mapping:
    if args:
        raise Corrupt("OrderedDict has arguments")
    return Mapping()


def _size(args: tuple[object, ...]) -> tuple[int, ...]:
    if len(args) != 1:
        raise Corrupt("torch.Size has a wrong number of arguments")
    return _counts(args[0])


CALLS: dict[str, Callable[[tuple[object, ...]], object]] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "collections.OrderedDict": _ordered_dict,
    "torch.Size": _size,
}
GLOBALS = CALLS.keys() | STORAGES.keys() | _DTYPES
