"""Parameters of a codec: one line declares validation, spec text, header bytes and repr.

    @register(id=3, name="mxnet-2bit")
    class MXNet2Bit(Codec):
        server: str = param(Choice("no", "yes"), "no", "whose threshold the decoder uses")

The module `kinds` contains the types of parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported, brief, suggestion
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import Float32, Integer, Kind
from gcodec.wire.primitives import Reader

_P = TypeVar("_P", bound="Parameters")

Scalars: TypeAlias = dict[str, Any]
"""The scalars of one message, by name; `Parameters.message_fields` declares their kinds."""


@dataclasses.dataclass(frozen=True)
class Field:
    """A value on the wire.

    Attributes
    ----------
    name : str
    kind : Kind
    doc : str
        Description for tables of codecs.
    """

    name: str
    kind: Kind
    doc: str

    @property
    def meaning(self) -> str:
        """Description of a value in a frame, which is never ``auto``."""
        return self.doc.partition("; auto:")[0]


@dataclasses.dataclass(frozen=True)
class Param(Field):
    """A declared parameter.

    Attributes
    ----------
    attribute : str
        Name of the Python attribute. It differs from `name` if Python reserves that word.
    default : Any
    in_message : bool
        Whether each message stores its own value among the frame's scalars, and not among the
        parameters. This suits a parameter that the codec may resolve per tensor.
    in_frame : bool
        Whether the header contains the parameter. If not, only the encoder uses the value, and the
        codec of a decoded frame has the default.
    left_out : optional
        Value in messages that do not store the parameter, such as those of earlier versions. The
        parameter is then among the last scalars. None: all messages store it.
    """

    attribute: str
    default: object
    in_message: bool
    left_out: object = None
    in_frame: bool = True


class ReadField(NamedTuple):
    """A field and its position in the bytes.

    Attributes
    ----------
    field : Field
    start, end : int
        Offsets of the first byte, and of the byte after the last one.
    value : Any
    """

    field: Field
    start: int
    end: int
    value: Any


def param(
    kind: Kind,
    default: object,
    doc: str,
    *,
    name: str | None = None,
    in_message: bool = False,
    left_out: object = None,
    in_frame: bool = True,
) -> Any:
    """Declare a parameter in the body of a codec class.

    Parameters
    ----------
    kind : Choice, Integer, Float32 or another kind
        Type of the values, which checks them and converts them to text and bytes.
    default : object
    doc : str
        Description for ``gcodec codecs`` and for tables; ``; auto: …`` explains the word.
    name : str, optional
        Name in specs, if Python reserves that word. Default: the name of the attribute.
    in_message : bool
        Whether each message stores its own value, because the codec may choose it per tensor.
    left_out : object, optional
        Value in messages that do not store the parameter, such as those of earlier versions.
    in_frame : bool
        Whether the header stores the parameter; if not, only the encoder uses it.

    Returns
    -------
    dataclasses.Field

    Raises
    ------
    TypeError
        If `kind` is no object of such a type.

    Examples
    --------
    >>> import gcodec
    >>> from typing import Any
    >>> from gcodec.codec import Integer, param
    >>> class Blocks(gcodec.Codec):
    ...     size: Any = param(Integer(1, 4096), 32, "elements of a block")
    """
    if isinstance(kind, type) or not hasattr(kind, "check"):
        title = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        raise TypeError(f"kind is {title}: must be a kind such as gcodec.codec.Integer(1, 8)")
    declared = Param(name or "", kind, doc, "", default, in_message, left_out, in_frame)
    return dataclasses.field(default=default, metadata={"param": declared})


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Parameters:
    """Base class of codecs: a frozen dataclass whose fields are all declared by `param`."""

    name: ClassVar[str]

    @exact
    def __post_init__(self) -> None:
        for declared in self.declared():
            value = declared.kind.check(declared.name, getattr(self, declared.attribute))
            object.__setattr__(self, declared.attribute, value)
        self.check()

    def check(self) -> None:
        """Raise `ParameterError` for an invalid combination of parameters."""

    @classmethod
    @functools.cache
    def declared(cls) -> tuple[Param, ...]:
        """Return the declared parameters, in order."""
        return tuple(
            dataclasses.replace(
                field.metadata["param"],
                name=field.metadata["param"].name or field.name,
                attribute=field.name,
            )
            for field in dataclasses.fields(cls)
        )

    @classmethod
    @functools.cache
    def _declared_by_place(cls) -> tuple[tuple[Param, ...], ...]:
        """Return the parameters of the frame, of all messages, and of some messages only."""
        declared = cls.declared()
        return (
            tuple(d for d in declared if d.in_frame and not d.in_message),
            tuple(d for d in declared if d.in_message and d.left_out is None),
            tuple(d for d in declared if d.in_message and d.left_out is not None),
        )

    @exact
    def replaced(self: _P, **values: object) -> _P:
        """Return a copy with some parameters replaced; only their values are validated again."""
        copy = object.__new__(type(self))
        for declared in self.declared():
            key = declared.attribute
            if key in values:
                copy.__dict__[key] = declared.kind.check(declared.name, values.pop(key))
            else:
                copy.__dict__[key] = self.__dict__[key]
        if values:
            raise TypeError(f"{self.name} has no {next(iter(values))}")
        copy.check()
        return copy

    @classmethod
    def from_mapping(cls: type[_P], values: Mapping[str, object]) -> _P:
        """Build a codec from a mapping of parameter names to values."""
        cls._check_names(values)
        attributes = {declared.name: declared.attribute for declared in cls.declared()}
        return cls(**{attributes[key]: value for key, value in values.items()})

    @classmethod
    @functools.lru_cache(maxsize=256)  # most frames share a few codecs
    def from_header(cls, data: bytes) -> Any:
        """Build a codec from the header bytes of its parameters; see `write_parameters`."""
        return cls.from_mapping(cls.read_parameters(memoryview(data)))

    @classmethod
    @functools.lru_cache(maxsize=256)
    def from_text(cls, text: str | None) -> Any:
        """Build a codec from ``key=value,key=value``, in any order; None stands for defaults."""
        values: dict[str, str] = {}
        for part in () if text is None else text.split(","):
            key, equals, value = part.partition("=")
            if key != key.strip():
                allowed = "name:key=value,key=value without spaces"
                raise ParameterError.of("spec", f"{cls.name}:{text}", allowed)
            if not equals or key in values:
                allowed = f"name:key=value,key=value{f', with one {key}' if equals else ''}"
                raise ParameterError.of("spec", f"{cls.name}:{text}", allowed)
            values[key] = value
        cls._check_names(values)
        kinds = {declared.name: declared.kind for declared in cls.declared()}
        return cls.from_spec({k: kinds[k].parse(k, value) for k, value in values.items()})

    @classmethod
    def from_spec(cls: type[_P], values: Mapping[str, object]) -> _P:
        """Build a codec as `from_mapping` does; refuse numbers that only messages may have."""
        built = cls.from_mapping(values)
        for declared in cls.declared():
            if declared.name in values and isinstance(declared.kind, (Integer, Float32)):
                declared.kind.check_asked(declared.name, getattr(built, declared.attribute))
        return built

    @classmethod
    def _check_names(cls, values: Mapping[str, object]) -> None:
        names = [declared.name for declared in cls.declared()]
        for key in values:
            if key not in names:
                raise ParameterError(
                    f"{brief(str(key))}={brief(repr(values[key]))}: {cls.name} has "
                    + (f"the parameters {', '.join(names)}" if names else "no parameters")
                    + suggestion(key, names)
                )

    def _is_set(self, declared: Param) -> bool:
        """Return whether a parameter differs from its default."""
        value, text = getattr(self, declared.attribute), declared.kind.text
        return value is not declared.default and text(value) != text(declared.default)

    def __str__(self) -> str:
        """Return the canonical spec without defaults; ``parse(str(codec)) == codec``."""
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        texts = (
            f"{declared.name}={declared.kind.text(getattr(self, declared.attribute))}"
            for declared in filter(self._is_set, self.declared())
        )
        return ":".join(filter(None, (self.name, ",".join(texts))))

    def __repr__(self) -> str:
        """Return the Python expression that builds this codec."""
        parts = []
        for declared in filter(self._is_set, self.declared()):
            key, value = declared.attribute, getattr(self, declared.attribute)
            not_finite = isinstance(value, float) and not math.isfinite(value)
            parts.append(f"{key}=float({str(value)!r})" if not_finite else f"{key}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        """Compare class and parameters; NaN is equal to itself."""
        return self is other or (type(self) is type(other) and str(self) == str(other))

    def __hash__(self) -> int:
        """Hash the class and the parameters, as `__eq__` compares them."""
        return hash(self._text)

    def write_parameters(self) -> bytes:
        """Return the header bytes of the parameters, without trailing defaults."""
        sent = [*self._declared_by_place()[0]]
        while sent and not self._is_set(sent[-1]):
            sent.pop()
        return b"".join([d.kind.write(getattr(self, d.attribute)) for d in sent])

    @classmethod
    def read_parameters(cls, data: memoryview) -> dict[str, Any]:
        """Read header bytes of `write_parameters`; the result lacks trailing defaults."""
        return {item.field.name: item.value for item in cls.parameters_in(data)}

    @classmethod
    def parameters_in(cls, data: memoryview) -> Iterator[ReadField]:
        """Read parameters one by one; see `read_parameters`."""
        return _read_fields(cls._declared_by_place()[0], data)

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the scalars of each message that are not parameters, such as a scale."""
        return ()

    def message_fields(self) -> tuple[Field, ...]:
        """Return all scalars of a message, in the order of the frame."""
        _, in_all, in_some = self._declared_by_place()
        return *in_all, *self.scalar_fields(), *in_some

    def unresolved(self) -> list[str]:
        """Return the names of parameters, such as "auto", whose values each message determines."""
        return [d.name for d in self.declared() if getattr(self, d.attribute) in d.kind.unsent]

    def of_message(self: _P, scalars: Scalars) -> _P:
        """Return a copy with the parameters of a message that has these scalars."""
        _, in_all, in_some = self._declared_by_place()
        values = {d.attribute: scalars[d.name] for d in in_all + in_some if d.name in scalars}
        return self.replaced(**values) if values else self

    def write_scalars(self, scalars: Scalars) -> bytes:
        """Return the header bytes of a message's scalars."""
        sent, left_out = [*self.message_fields()], self._left_out()
        if len(scalars) != len(sent) or any(field.name not in scalars for field in sent):
            names = ", ".join(field.name for field in sent) or "none"
            raise ParameterError.of("scalars", ", ".join(scalars), f"the declared ones: {names}")
        while sent and sent[-1].name in left_out:
            if scalars[sent[-1].name] != left_out[sent[-1].name]:
                break
            sent.pop()
        return b"".join([f.kind.write(scalars[f.name]) for f in sent])

    def read_scalars(self, data: memoryview) -> Scalars:
        """Read header bytes of `write_scalars`; omitted scalars have their default."""
        scalars = {item.field.name: item.value for item in self.scalars_in(data)}
        for name, value in self._left_out().items():
            scalars.setdefault(name, value)
        return scalars

    def scalars_in(self, data: memoryview) -> Iterator[ReadField]:
        """Read the stored scalars one by one; see `read_scalars`."""
        fields = self.message_fields()
        return _read_fields(fields, data, len(fields) - len(self._left_out()))

    @classmethod
    @functools.cache
    def _left_out(cls) -> Scalars:
        """Return the optional scalars, by name, with their values in messages without them."""
        return {d.name: d.left_out for d in cls.declared() if d.left_out is not None}

    def fields_nbytes(self) -> int:
        """Return the maximum number of bytes of all parameters and scalars."""
        sent = [d for d in self.declared() if d.in_frame]
        return sum(field.kind.nbytes for field in (*sent, *self.scalar_fields()))


def parse_spec(
    label: str,
    spec: object,
    base: type[_P],
    classes: Mapping[str, type[_P]],
    peers: Callable[[], Mapping[str, str]] = dict,
) -> _P:
    """Build the object that a spec describes.

    Parameters
    ----------
    label : str
        Name of the parameter in error messages.
    spec : str, mapping or `base`
        ``"name:key=value,key=value"``, a mapping with a ``"name"``, or an instance of `base`,
        which is returned unchanged.
    base : type
    classes : mapping
        Subclasses of `base`, by name.
    peers : callable
        Returns specs by their names in other systems, for error messages.

    Raises
    ------
    ParameterError
    """
    if isinstance(spec, base):
        return spec
    values, text, name = {}, None, spec
    if isinstance(spec, str):
        name, colon, after = spec.partition(":")
        text = after if colon else None
    elif isinstance(spec, Mapping):
        if "name" not in spec:
            raise ParameterError.of(label, dict(spec), 'a mapping with a "name"')
        values = dict(spec)
        name = values.pop("name")
    else:
        raise ParameterError.of(label, spec, f"a spec, a mapping or a {base.__name__}")
    cls = classes.get(name) if isinstance(name, str) else None
    if cls is None:
        hint = _respelled(text, name, classes, peers) or suggestion(name, classes)
        hint = hint or _similar(name, peers)
        allowed = "one of " + ", ".join(classes) + hint
        raise ParameterError.of(label, name, allowed)
    built: _P = cls.from_spec(values) if values else cls.from_text(text)
    return built


def _respelled(
    text: str | None,
    name: object,
    classes: Mapping[str, object],
    peers: Callable[[], Mapping[str, str]],
) -> str:
    """Return ``; write …`` for a name of another system, or for a name without its colon."""
    if text is not None or not isinstance(name, str):
        return ""
    if "," in name and "=" not in name and name.partition(",")[0] in classes:
        return "; a spec has one name"
    spec = peers().get(name.lower())
    if spec is None and "=" in name:
        spec = re.sub("[, ]+", ",", name.strip(", ")).replace(",", ":", 1)
    if spec is None or spec.partition(":")[0] not in classes:
        return ""
    return f"; write {brief(spec)}"


def _similar(name: object, peers: Callable[[], Mapping[str, str]]) -> str:
    """Return a pointer to the names of other systems that contain a name."""
    if not isinstance(name, str) or len(name) < 3 or not name.isalnum():
        return ""
    if not any(name.lower() in peer for peer in peers()):
        return ""
    return f"; gcodec codecs --like {name} lists formats of other systems"


def _read_fields(
    fields: Sequence[Field], data: memoryview, required: int = 0
) -> Iterator[ReadField]:
    """Read fields; only the first `required` ones must exist."""
    reader = Reader(data)
    for number, field in enumerate(fields):
        start = reader.at
        if start == len(data) and number >= required:
            return
        try:
            value = field.kind.read(reader)
        except Truncated:
            raise Corrupt(f"{field.name}: the header has too few bytes for it") from None
        except (Corrupt, Unsupported) as error:
            raise type(error)(f"{field.name}: {error}") from None
        yield ReadField(field, start, reader.at, value)
    if reader.at != len(data):
        raise Unsupported("fields that this release does not know")
