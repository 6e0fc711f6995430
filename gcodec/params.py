"""Parameters of a codec: one declared line each gives validation, spec text, header bytes, repr.

    @register(id=3, name="mxnet-2bit")
    class MXNet2Bit(Codec):
        server: str = param(Choice("no", "yes"), "no", "whose threshold the decoder uses")

What kinds of value there are is in `kinds`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported, brief
from gcodec.kinds import Kind
from gcodec.wire import Reader

_P = TypeVar("_P", bound="Parameters")


@dataclasses.dataclass(frozen=True)
class Param:
    """One declared parameter.

    Attributes
    ----------
    name : str
    kind : Kind
    default : Any
    doc : str
        What it means, for tables of codecs.
    in_message : bool
        Whether every message carries its own value among the frame's scalars, rather than in the
        parameters: so it is for what a codec may resolve per tensor.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    in_message: bool


def param(kind: Kind, default: Any, doc: str, *, in_message: bool = False) -> Any:
    """Declare a parameter in the body of a codec class; see `Param`."""
    return dataclasses.field(
        default=default, metadata={"kind": kind, "doc": doc, "in_message": in_message}
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Parameters:
    """Base of codecs: a frozen dataclass whose fields are all made by `param`."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for declared in self.declared():
            value = declared.kind.check(declared.name, getattr(self, declared.name))
            object.__setattr__(self, declared.name, value)
        self.check()

    def check(self) -> None:
        """Raise `ParameterError` where parameters do not fit together."""

    @classmethod
    @functools.cache
    def declared(cls) -> tuple[Param, ...]:
        """Return the declared parameters, in order."""
        fields = dataclasses.fields(cls)
        return tuple(Param(name=f.name, default=f.default, **f.metadata) for f in fields)

    def replaced(self: _P, **values: Any) -> _P:
        """Return a copy with some parameters replaced."""
        return dataclasses.replace(self, **values)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Any:
        """Build from a mapping of parameter names to values."""
        cls._check_names(values)
        return cls(**values)

    @classmethod
    def from_text(cls, text: str) -> Any:
        """Build from ``key=value,key=value``, in any order; see `__str__`."""
        values: dict[str, str] = {}
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if not equals or key in values:
                raise ParameterError.of("spec", f"{cls.name}:{text}", "name:key=value,key=value")
            values[key] = value
        cls._check_names(values)
        kinds = {declared.name: declared.kind for declared in cls.declared()}
        return cls(**{key: kinds[key].parse(key, value) for key, value in values.items()})

    @classmethod
    def _check_names(cls, values: Mapping[str, object]) -> None:
        known = [declared.name for declared in cls.declared()]
        for key in values:
            if key not in known:
                raise ParameterError(
                    f"{brief(str(key))}={brief(repr(values[key]))}: {cls.name} has "
                    + (f"the parameters {', '.join(known)}" if known else "no parameters")
                )

    def _texts(self) -> dict[str, str]:
        """Spell each parameter that differs from its default."""
        texts = {}
        for declared in self.declared():
            text = declared.kind.text(getattr(self, declared.name))
            if text != declared.kind.text(declared.default):
                texts[declared.name] = text
        return texts

    def __str__(self) -> str:
        """Return the canonical spec: defaults left out; ``parse(str(codec)) == codec``."""
        texts = self._texts()
        return ":".join(
            filter(None, (self.name, ",".join(f"{key}={text}" for key, text in texts.items())))
        )

    def __repr__(self) -> str:
        """Return the Python expression that builds this codec."""
        parts = []
        for key in self._texts():
            value = getattr(self, key)
            odd = isinstance(value, float) and not math.isfinite(value)
            parts.append(f"{key}=float({str(value)!r})" if odd else f"{key}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        """Compare class and parameters, NaN being equal to itself."""
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        """Hash what `__eq__` compares."""
        return hash(str(self))

    def write_parameters(self) -> bytes:
        """Return the header bytes of the parameters, trailing defaults left out."""
        parts = [
            (declared.name, declared.kind.write(getattr(self, declared.name)))
            for declared in self.declared()
            if not declared.in_message
        ]
        set_here = self._texts()
        while parts and parts[-1][0] not in set_here:
            parts.pop()
        return b"".join(written for _, written in parts)

    @classmethod
    def read_parameters(cls, data: memoryview) -> dict[str, Any]:
        """Read what `write_parameters` wrote; what is missing at the end keeps its default."""
        reader = Reader(data)
        values = {}
        for declared in cls.declared():
            if declared.in_message or reader.at == len(data):
                continue
            values[declared.name] = _read(declared, reader)
        return _nothing_left(values, reader)

    @classmethod
    def message_fields(cls) -> tuple[Param, ...]:
        """Return the parameters whose value each message carries."""
        return tuple(declared for declared in cls.declared() if declared.in_message)

    def message_values(self) -> dict[str, Any]:
        """Return the values that a message of this codec carries, by name."""
        return {declared.name: getattr(self, declared.name) for declared in self.message_fields()}

    def write_scalars(self) -> bytes:
        """Return the header bytes of the values that the message carries."""
        return b"".join(f.kind.write(getattr(self, f.name)) for f in self.message_fields())

    @classmethod
    def read_scalars(cls, data: memoryview) -> dict[str, Any]:
        """Read what `write_scalars` wrote."""
        reader = Reader(data)
        values = {declared.name: _read(declared, reader) for declared in cls.message_fields()}
        return _nothing_left(values, reader)

    @classmethod
    def fields_nbytes(cls) -> int:
        """Return the most bytes that parameters and scalars take together."""
        return sum(declared.kind.nbytes for declared in cls.declared())


def _read(declared: Param, reader: Reader) -> Any:
    try:
        return declared.kind.read(reader)
    except Truncated:
        raise Corrupt(f"{declared.name}: the header has too few bytes for it") from None
    except (Corrupt, Unsupported) as error:
        raise type(error)(f"{declared.name}: {error}") from None


def _nothing_left(values: dict[str, Any], reader: Reader) -> dict[str, Any]:
    if reader.at != len(reader.data):
        raise Unsupported("fields that this release does not know")
    return values
