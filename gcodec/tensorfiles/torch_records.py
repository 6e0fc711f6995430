"""Names that a pickle of torch.save may contain, and the inert records that represent them.

This module imports none of the named objects. Each name stands for a record, or for a function
below that checks its arguments and returns a record.
"""

from __future__ import annotations

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
