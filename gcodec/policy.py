"""Policies: which codec for which tensor, by its name, number of dimensions and size."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.source import size_of
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import ParameterError, brief
from gcodec.wire.kinds import check_integer
from gcodec.wire.primitives import DTYPE_CODES, INTEGERS, ITEMSIZE, MAX_NDIM, encode_name

_KEYS = ("name", "ndim", "min_bytes", "max_bytes", "codec")  # of a rule
_SOURCE = "a mapping of globs to specs, or a list of rules"
_MOST_BYTES = 2**63 - 1
_TOO_DEEP = "policy: is nested too deep: must be a list of rules"


class Rule(NamedTuple):
    """One line of a policy.

    Attributes
    ----------
    codec : Codec
        For the tensors that match.
    names : tuple of str
        Globs, of which the name must match one; empty for any name.
    ndims : tuple of int
        Allowed numbers of dimensions; empty for any.
    min_bytes, max_bytes : int
        Bounds of the size, both inclusive.
    """

    codec: Codec
    names: tuple[str, ...]
    ndims: tuple[int, ...]
    min_bytes: int
    max_bytes: int

    def matches(self, name: str, ndim: int, nbytes: int) -> bool:
        """Tell whether the rule is for such a tensor."""
        return (
            (not self.names or any(fnmatch.fnmatchcase(name, glob) for glob in self.names))
            and (not self.ndims or ndim in self.ndims)
            and self.min_bytes <= nbytes <= self.max_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as a policy's source spells it, without what is left at its default."""
        found: dict[str, Any] = {}
        for key, values in (("name", self.names), ("ndim", self.ndims)):
            if values:
                found[key] = values[0] if len(values) == 1 else list(values)
        if self.min_bytes > 0:
            found["min_bytes"] = self.min_bytes
        if self.max_bytes < _MOST_BYTES:
            found["max_bytes"] = self.max_bytes
        return found | {"codec": str(self.codec)}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Policy:
    """Which codec for which tensor: rules of which the first that matches wins.

    Parameters
    ----------
    source : mapping or list
        ``{glob: spec}``, in order, for rules that look at the name only; or a list of rules; or
        ``{"rules": [...]}`` around that list. A rule is a mapping with the keys

        - ``"name"``: a glob, or a list of globs of which one must match. ``*``, ``?``, ``[seq]``
          and ``[!seq]`` are as in `fnmatch.fnmatchcase`: case counts, and ``*`` matches dots and
          slashes too. For names with brackets: ``[[]`` matches ``[``, and `glob.escape` escapes.
        - ``"ndim"``: a number of dimensions, or a list of them.
        - ``"min_bytes"``, ``"max_bytes"``: inclusive bounds of the size in the tensor's own dtype.
        - ``"codec"``: required; a spec, a mapping or a Codec, as for `gcodec.parse`.

        A tensor matches a rule if it meets all that the rule asks for.

    Attributes
    ----------
    rules : tuple of Rule

    Raises
    ------
    ParameterError
        Names the rule, the key, the value and what is allowed.

    Examples
    --------
    >>> import gcodec
    >>> policy = gcodec.Policy({"*.bias": "raw", "*": "mxnet-2bit:threshold=auto"})
    >>> policy.codec("fc.bias", (10,), "float32"), policy.codec("fc.weight", (10, 64), "float32")
    (Raw(), MXNet2Bit(threshold='auto'))
    >>> gcodec.Policy([{"max_bytes": 4096, "codec": "raw"}, {"ndim": 4, "codec": "mxnet-2bit"}])
    Policy([{'max_bytes': 4096, 'codec': 'raw'}, {'ndim': 4, 'codec': 'mxnet-2bit'}])
    """

    rules: tuple[Rule, ...]

    def __init__(self, source: Any) -> None:
        try:
            rules = _rules(source)
        except RecursionError:
            raise ParameterError(_TOO_DEEP) from None
        object.__setattr__(self, "rules", rules)

    @classmethod
    def from_json(cls, text: str | bytes) -> Policy:
        """Read a policy from JSON: an object or a list as `Policy` takes it, bytes in UTF-8.

        Raises
        ------
        ParameterError
            Also for a key that stands twice in an object, and for NaN and Infinity.

        Examples
        --------
        >>> Policy.from_json('{"*.bias": "raw", "*": "mxnet-2bit"}').to_dict()
        {'rules': [{'name': '*.bias', 'codec': 'raw'}, {'name': '*', 'codec': 'mxnet-2bit'}]}
        """
        return cls(_from_json(text))

    def codec(self, name: str | None, shape: Any, dtype: Any) -> Codec:
        """Return the codec for a tensor.

        Integers and booleans are not rules' business: their codec is always ``raw``.

        Parameters
        ----------
        name : str or None
            A tensor without a name is matched as if its name were empty.
        shape : tuple of int
        dtype : str or dtype
            float32, float16, bfloat16, float64, an integer of 8 to 64 bits or bool; of NumPy,
            torch or JAX.

        Raises
        ------
        ParameterError
            If no rule matches.
        """
        if name is not None:
            encode_name(name)
        text = str(getattr(dtype, "name", getattr(dtype, "__name__", dtype)))
        text = text.removeprefix("torch.")
        if text not in ITEMSIZE:
            raise ParameterError.of("dtype", dtype, f"one of {', '.join(DTYPE_CODES)}")
        if text in INTEGERS:
            return parse("raw")
        dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        ndim, nbytes = len(dims), size_of(dims) * ITEMSIZE[text]
        for rule in self.rules:
            if rule.matches(name or "", ndim, nbytes):
                return rule.codec
        raise ParameterError(
            f"tensor {brief(repr(name))}, ndim {ndim}, {nbytes} bytes: no rule of the policy "
            "matches; a last rule with only a codec matches every tensor"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the canonical source: ``Policy(policy.to_dict()) == policy``."""
        return {"rules": [rule.to_dict() for rule in self.rules]}

    def to_json(self) -> str:
        """Return the canonical source as JSON, a line for each rule."""
        lines = ",\n  ".join(json.dumps(rule.to_dict()) for rule in self.rules)
        return f'{{"rules": [\n  {lines}\n]}}'

    def __repr__(self) -> str:
        """Return the Python expression that builds this policy."""
        return f"Policy({self.to_dict()['rules']!r})"


def _rules(source: Any) -> tuple[Rule, ...]:
    if isinstance(source, Mapping) and "rules" not in source:
        found = [_short_rule(glob, spec) for glob, spec in source.items()]
    elif isinstance(source, Mapping):
        _check_keys("policy", source, ("rules",))
        if not isinstance(source["rules"], (list, tuple)):
            raise ParameterError.of("policy.rules", source["rules"], "a list of rules")
        return _rules(source["rules"])
    elif isinstance(source, (list, tuple)):
        found = [_rule(f"policy.rules[{place}]", rule) for place, rule in enumerate(source)]
    else:
        raise ParameterError.of("policy", source, _SOURCE)
    if not found:
        raise ParameterError.of("policy", source, _SOURCE + "; not empty")
    return tuple(found)


def _short_rule(glob: object, spec: object) -> Rule:
    if glob in _KEYS:
        # Someone forgot the list, or passes the mapping of a codec.
        raise ParameterError.of(
            f"policy.{glob}",
            spec,
            f"in a rule in a list; for a tensor of that name, write [{glob[0]}]{glob[1:]}",
        )
    if not isinstance(glob, str):
        raise ParameterError.of("policy", glob, _SOURCE)
    return Rule(_codec(_at("policy", glob), spec), (glob,), (), 0, _MOST_BYTES)


def _rule(where: str, rule: object) -> Rule:
    if not isinstance(rule, Mapping):
        raise ParameterError.of(where, rule, f"a mapping with the keys {', '.join(_KEYS)}")
    _check_keys(where, rule, _KEYS)
    if "codec" not in rule:
        raise ParameterError(f"{where}.codec is missing: must be a spec, a mapping or a Codec")
    least = _bytes(f"{where}.min_bytes", rule.get("min_bytes", 0))
    most = _bytes(f"{where}.max_bytes", rule.get("max_bytes", _MOST_BYTES))
    if least > most:
        raise ParameterError.of(f"{where}.min_bytes", least, f"at most max_bytes={most}")
    return Rule(
        _codec(f"{where}.codec", rule["codec"]),
        _names(f"{where}.name", rule["name"]) if "name" in rule else (),
        _ndims(f"{where}.ndim", rule["ndim"]) if "ndim" in rule else (),
        least,
        most,
    )


def _check_keys(where: str, found: Mapping[Any, object], known: tuple[str, ...]) -> None:
    for key, value in found.items():
        if key not in known:
            allowed = f"left out; the keys are {', '.join(known)}"
            raise ParameterError.of(_at(where, key), value, allowed)


def _at(where: str, key: object) -> str:
    """Say where the value of a key stands."""
    named = isinstance(key, str) and key.isidentifier()
    return f"{where}.{brief(str(key))}" if named else f"{where}[{brief(repr(key))}]"


def _codec(where: str, spec: Any) -> Codec:
    try:
        return parse(spec)
    except ParameterError as error:
        raise ParameterError(f"{where}: {error}") from None


def _names(where: str, value: object) -> tuple[str, ...]:
    globs = value if isinstance(value, (list, tuple)) else [value]
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise ParameterError.of(where, value, "a glob or a list of globs")
    return tuple(dict.fromkeys(globs))


def _ndims(where: str, value: object) -> tuple[int, ...]:
    ndims = value if isinstance(value, (list, tuple)) else [value]
    allowed = f"an integer from 0 to {MAX_NDIM}, or a list of such"
    if not ndims:
        raise ParameterError.of(where, value, allowed)
    return tuple(sorted({check_integer(where, ndim, 0, MAX_NDIM, allowed) for ndim in ndims}))


def _bytes(where: str, value: object) -> int:
    return check_integer(where, value, 0, _MOST_BYTES, "an integer from 0 to 2**63 - 1")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written, a key that stands twice included."""


def _from_json(text: str | bytes) -> Any:
    """Read what `Policy` takes out of JSON."""
    if not isinstance(text, (str, bytes)):
        raise ParameterError.of("policy", text, "JSON text; Policy(...) takes mappings and lists")
    try:
        found = json.loads(
            text if isinstance(text, str) else text.decode("utf-8-sig"),
            object_pairs_hook=_Pairs,
            # Python may refuse to read integers of many digits; as floats they are refused here.
            parse_int=lambda digits: int(digits) if len(digits) <= 20 else float(digits),
        )
        return _plain("policy.rules" if type(found) is list else "policy", found)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ParameterError.of("policy", text, f"JSON: {error.msg} at {place}") from None
    except UnicodeDecodeError as error:
        raise ParameterError.of("policy", text, f"UTF-8: byte {error.start} is not") from None
    except RecursionError:
        raise ParameterError(_TOO_DEEP) from None


def _plain(where: str, value: Any) -> Any:
    """Turn pairs into dicts, and refuse what JSON or a dict would hide."""
    if isinstance(value, _Pairs):
        found: dict[str, Any] = {}
        for key, item in value:
            if key in found:
                raise ParameterError.of(
                    _at(where, key), item, "given once, but this is the second"
                )
            found[key] = _plain(_at(where, key), item)
        return found
    if isinstance(value, list):
        return [_plain(f"{where}[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ParameterError.of(where, value, "a finite number")
    return value
