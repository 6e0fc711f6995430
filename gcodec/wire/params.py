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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported, brief
from gcodec.wire.kinds import Integer, Kind
from gcodec.wire.primitives import Reader

_P = TypeVar("_P", bound="Parameters")


@dataclasses.dataclass(frozen=True)
class Field:
    """One value on the wire.

    Attributes
    ----------
    name : str
    kind : Kind
    doc : str
        What it means, for tables of codecs.
    """

    name: str
    kind: Kind
    doc: str


@dataclasses.dataclass(frozen=True)
class Param(Field):
    """One declared parameter.

    Attributes
    ----------
    attribute : str
        Its name in Python, where that in specs is taken.
    default : Any
    in_message : bool
        Whether every message carries its own value among the frame's scalars, rather than in the
        parameters: so it is for what a codec may resolve per tensor.
    in_frame : bool
        Whether it is in the header at all; else it is for the encoder alone, and frames that are
        read have its default.
    left_out : optional
        What it is in messages that do not carry it, as those of versions before it do not; it then
        comes last among the scalars. None: all carry it.
    """

    attribute: str
    default: Any
    in_message: bool
    left_out: Any = None
    in_frame: bool = True


class Found(NamedTuple):
    """A field where it lies.

    Attributes
    ----------
    field : Field
    start, end : int
        Its first byte, and the byte behind it.
    value : Any
    """

    field: Field
    start: int
    end: int
    value: Any


def param(
    kind: Kind,
    default: Any,
    doc: str,
    *,
    name: str | None = None,
    in_message: bool = False,
    left_out: Any = None,
    in_frame: bool = True,
) -> Any:
    """Declare a parameter in the body of a codec class; see `Param`."""
    metadata: dict[str, Any] = {"name": name, "kind": kind, "doc": doc}
    metadata |= {"in_message": in_message, "left_out": left_out, "in_frame": in_frame}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Parameters:
    """Base of codecs: a frozen dataclass whose fields are all made by `param`."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for declared in self.declared():
            value = declared.kind.check(declared.name, getattr(self, declared.attribute))
            object.__setattr__(self, declared.attribute, value)
        self.check()

    def check(self) -> None:
        """Raise `ParameterError` where parameters do not fit together."""

    @classmethod
    @functools.cache
    def declared(cls) -> tuple[Param, ...]:
        """Return the declared parameters, in order."""
        return tuple(
            Param(
                name=field.metadata["name"] or field.name,
                kind=field.metadata["kind"],
                doc=field.metadata["doc"],
                attribute=field.name,
                default=field.default,
                in_message=field.metadata["in_message"],
                left_out=field.metadata["left_out"],
                in_frame=field.metadata["in_frame"],
            )
            for field in dataclasses.fields(cls)
        )

    @classmethod
    @functools.cache
    def _declared_apart(cls) -> tuple[tuple[Param, ...], ...]:
        """Return those of the frame, those that all messages carry, and those that some do."""
        every = cls.declared()
        return (
            tuple(d for d in every if d.in_frame and not d.in_message),
            tuple(d for d in every if d.in_message and d.left_out is None),
            tuple(d for d in every if d.in_message and d.left_out is not None),
        )

    def replaced(self: _P, **values: Any) -> _P:
        """Return a copy with some parameters replaced; only these are looked at again."""
        made = object.__new__(type(self))
        for declared in self.declared():
            key = declared.attribute
            if key in values:
                made.__dict__[key] = declared.kind.check(declared.name, values.pop(key))
            else:
                made.__dict__[key] = self.__dict__[key]
        if values:
            raise TypeError(f"{self.name} has no {next(iter(values))}")
        made.check()
        return made

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Any:
        """Build from a mapping of parameter names to values."""
        cls._check_names(values)
        attributes = {declared.name: declared.attribute for declared in cls.declared()}
        return cls(**{attributes[key]: value for key, value in values.items()})

    @classmethod
    @functools.lru_cache(maxsize=256)  # most frames are of few codecs
    def from_header(cls, data: bytes) -> Any:
        """Build from the header bytes of the parameters; see `write_parameters`."""
        return cls.from_mapping(cls.read_parameters(memoryview(data)))

    @classmethod
    @functools.lru_cache(maxsize=256)
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
        return cls.from_mapping({k: kinds[k].parse(k, value) for k, value in values.items()})

    @classmethod
    def _check_names(cls, values: Mapping[str, object]) -> None:
        known = [declared.name for declared in cls.declared()]
        for key in values:
            if key not in known:
                raise ParameterError(
                    f"{brief(str(key))}={brief(repr(values[key]))}: {cls.name} has "
                    + (f"the parameters {', '.join(known)}" if known else "no parameters")
                )

    def _set_here(self) -> dict[str, Param]:
        """Return each parameter that differs from its default, by name."""
        return {d.name: d for d in self.declared() if self._is_set(d)}

    def _is_set(self, declared: Param) -> bool:
        """Tell if a parameter differs from its default."""
        value, text = getattr(self, declared.attribute), declared.kind.text
        return value is not declared.default and text(value) != text(declared.default)

    def __str__(self) -> str:
        """Return the canonical spec: defaults left out; ``parse(str(codec)) == codec``."""
        texts = (
            f"{name}={declared.kind.text(getattr(self, declared.attribute))}"
            for name, declared in self._set_here().items()
        )
        return ":".join(filter(None, (self.name, ",".join(texts))))

    def __repr__(self) -> str:
        """Return the Python expression that builds this codec."""
        parts = []
        for declared in self._set_here().values():
            key, value = declared.attribute, getattr(self, declared.attribute)
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
        sent = [*self._declared_apart()[0]]
        while sent and not self._is_set(sent[-1]):
            sent.pop()
        return b"".join([d.kind.write(getattr(self, d.attribute)) for d in sent])

    @classmethod
    def read_parameters(cls, data: memoryview) -> dict[str, Any]:
        """Read what `write_parameters` wrote; what is missing at the end keeps its default."""
        return {found.field.name: found.value for found in cls.parameters_in(data)}

    @classmethod
    def parameters_in(cls, data: memoryview) -> Iterator[Found]:
        """Read parameters one by one; see `read_parameters`."""
        return _found(cls._declared_apart()[0], data)

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return what each message carries that is no parameter, such as a scale."""
        return ()

    def message_fields(self) -> tuple[Field, ...]:
        """Return what each message carries, in the order of the frame's scalars."""
        _, always, seldom = self._declared_apart()
        return *always, *self.scalar_fields(), *seldom

    def unresolved(self) -> list[str]:
        """Return the names of parameters that stand for what the message will say."""
        return [d.name for d in self.declared() if getattr(self, d.attribute) in d.kind.unsent]

    def of_message(self: _P, scalars: Mapping[str, Any]) -> _P:
        """Return a copy whose parameters are those of a message with these scalars."""
        _, *own = self._declared_apart()
        told = {d.attribute: scalars[d.name] for ds in own for d in ds if d.name in scalars}
        return self.replaced(**told) if told else self

    def write_scalars(self, scalars: Mapping[str, Any]) -> bytes:
        """Return the header bytes of what a message carries."""
        sent, left_out = [*self.message_fields()], self._left_out()
        while sent and sent[-1].name in left_out:
            if scalars[sent[-1].name] != left_out[sent[-1].name]:
                break
            sent.pop()
        return b"".join([f.kind.write(scalars[f.name]) for f in sent])

    def read_scalars(self, data: memoryview) -> dict[str, Any]:
        """Read what `write_scalars` wrote."""
        told = {found.field.name: found.value for found in self.scalars_in(data)}
        return told | {k: v for k, v in self._left_out().items() if k not in told}

    def scalars_in(self, data: memoryview) -> Iterator[Found]:
        """Read scalars one by one, those that are there; see `read_scalars`."""
        fields = self.message_fields()
        return _found(fields, data, len(fields) - len(self._left_out()))

    @classmethod
    @functools.cache
    def _left_out(cls) -> dict[str, Any]:
        """Return what scalars that a message need not carry are where it does not."""
        return {d.name: d.left_out for d in cls.declared() if d.left_out is not None}

    def fields_nbytes(self) -> int:
        """Return the most bytes that parameters and scalars take together."""
        sent = [d for d in self.declared() if d.in_frame]
        return sum(field.kind.nbytes for field in (*sent, *self.scalar_fields()))


def parse_spec(what: str, spec: object, base: type[_P], known: Mapping[str, type[_P]]) -> _P:
    """Make what a spec names.

    Parameters
    ----------
    what : str
        What it is, for the message of an error.
    spec : str, mapping or `base`
        ``"name:key=value,key=value"``, a mapping with a ``"name"``, or one of `base`, which is
        returned as it is.
    base : type
    known : mapping
        The classes of `base`, by name.

    Raises
    ------
    ParameterError
    """
    if isinstance(spec, base):
        return spec
    values: dict[str, Any] = {}
    if isinstance(spec, str):
        name, colon, text = spec.partition(":")
    elif isinstance(spec, Mapping):
        values = dict(spec)
        name, colon, text = values.pop("name", None), "", ""
    else:
        raise ParameterError.of(what, spec, f"a spec, a mapping or a {base.__name__}")
    if not isinstance(name, str) or name not in known:
        raise ParameterError.of(what, name, "one of " + ", ".join(known))
    made: _P = known[name].from_text(text) if colon else known[name].from_mapping(values)
    for declared in made.declared():
        if isinstance(declared.kind, Integer):
            declared.kind.check_asked(declared.name, getattr(made, declared.attribute))
    return made


def _found(fields: Sequence[Field], data: memoryview, needed: int = 0) -> Iterator[Found]:
    """Read fields; those behind the first that are needed may be missing."""
    reader = Reader(data)
    for number, field in enumerate(fields):
        start = reader.at
        if start == len(data) and number >= needed:
            return
        try:
            value = field.kind.read(reader)
        except Truncated:
            raise Corrupt(f"{field.name}: the header has too few bytes for it") from None
        except (Corrupt, Unsupported) as error:
            raise type(error)(f"{field.name}: {error}") from None
        yield Found(field, start, reader.at, value)
    if reader.at != len(data):
        raise Unsupported("fields that this release does not know")
