"""Policies: rules that pick a codec by a tensor's name, number of dimensions and size."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gcodec.arrays.protocols import ShapeLike
from gcodec.arrays.source import dimensions
from gcodec.codec import Codec, CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError, brief, suggestion
from gcodec.wire.kinds import check_integer
from gcodec.wire.primitives import DTYPE_CODES, ITEMSIZE, MAX_NDIM, UNCONVERTED, encode_name

_KEYS = ("name", "ndim", "min_bytes", "max_bytes", "codec")  # keys of a rule
_SOURCE = "a mapping of globs to specs, or a list of rules"
_MAX_NBYTES = 2**63 - 1
_TOO_DEEP = "policy: is nested too deeply: must be a list of rules"


class Rule(NamedTuple):
    """One rule of a policy.

    Attributes
    ----------
    codec : Codec
        Codec of the tensors that match.
    names : tuple of str
        Globs of which the tensor's name must match one; empty for any name.
    ndims : tuple of int
        Allowed numbers of dimensions; empty for any number.
    min_bytes, max_bytes : int
        Inclusive bounds of the tensor's size.
    """

    codec: Codec
    names: tuple[str, ...]
    ndims: tuple[int, ...]
    min_bytes: int
    max_bytes: int

    def matches(self, name: str, ndim: int, nbytes: int) -> bool:
        """Return whether the rule applies to a tensor."""
        return (
            (not self.names or matches_any(name, self.names))
            and (not self.ndims or ndim in self.ndims)
            and self.min_bytes <= nbytes <= self.max_bytes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as a mapping for `Policy`, without the keys that have default values."""
        rule: dict[str, object] = {}
        for key, values in (("name", self.names), ("ndim", self.ndims)):
            if values:
                rule[key] = values[0] if len(values) == 1 else list(values)
        if self.min_bytes > 0:
            rule["min_bytes"] = self.min_bytes
        if self.max_bytes < _MAX_NBYTES:
            rule["max_bytes"] = self.max_bytes
        return rule | {"codec": str(self.codec)}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Policy:
    """Rules that pick a codec for each tensor; the first rule that matches wins.

    Parameters
    ----------
    source : mapping or list
        ``{glob: spec}`` for rules that depend on the name only, in this order; or a list of
        rules; or ``{"rules": [...]}`` around such a list. A rule is a mapping with the keys

        - ``"name"``: a glob, or a list of globs of which one must match, with the syntax of
          `fnmatch.fnmatchcase`: ``*``, ``?``, ``[seq]`` and ``[!seq]``. Case matters, and ``*``
          also matches dots and slashes. ``[[]`` matches a bracket; `glob.escape` escapes a name.
        - ``"ndim"``: a number of dimensions, or a list of such numbers.
        - ``"min_bytes"``, ``"max_bytes"``: inclusive bounds of the size in the tensor's own dtype.
        - ``"codec"``: required; a spec, a mapping or a Codec, as for `gcodec.parse`.

        A tensor matches a rule if it satisfies all keys.

    Attributes
    ----------
    rules : tuple of Rule
        The rules, in order.

    Raises
    ------
    ParameterError
        If the source is invalid. The message states the rule, the key, the value and the allowed
        values.

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

    def __init__(self, source: object) -> None:
        try:
            rules = _rules(source)
        except RecursionError:
            raise ParameterError(_TOO_DEEP) from None
        object.__setattr__(self, "rules", rules)

    @classmethod
    def from_json(cls, text: str | bytes) -> Policy:
        """Read a policy from JSON.

        Parameters
        ----------
        text : str or bytes
            JSON object or list with the structure that `Policy` takes; bytes in UTF-8.

        Raises
        ------
        ParameterError
            If the text is no JSON, contains NaN, Infinity or a duplicate key, or is no policy.

        Examples
        --------
        >>> Policy.from_json('{"*.bias": "raw", "*": "mxnet-2bit"}').to_dict()
        {'rules': [{'name': '*.bias', 'codec': 'raw'}, {'name': '*', 'codec': 'mxnet-2bit'}]}
        """
        return cls(_from_json(text))

    def codec(self, name: str | None, shape: ShapeLike, dtype: object) -> Codec:
        """Return the codec for a tensor.

        Integers, booleans and floats of 8 bits use the codec of their rule if it keeps every bit,
        as ``lossless`` does, or else ``raw``.

        Parameters
        ----------
        name : str or None
            Name of the tensor; None matches like an empty name.
        shape : tuple of int
            Shape of the tensor.
        dtype : str or dtype
            Dtype of NumPy, torch or JAX, or its name: float32, float16, bfloat16, float64, an
            integer of 8 to 64 bits, bool, float8_e4m3fn or float8_e5m2.

        Raises
        ------
        ParameterError
            If no rule matches, or an argument is invalid.
        """
        if name is not None:
            encode_name(name)
        text = str(getattr(dtype, "name", getattr(dtype, "__name__", dtype)))
        text = text.removeprefix("torch.")
        if text not in ITEMSIZE:
            raise ParameterError.of("dtype", dtype, f"one of {', '.join(DTYPE_CODES)}")
        sizes = dimensions(shape)
        ndim, nbytes = len(sizes), math.prod(sizes) * ITEMSIZE[text]
        matching = (rule.codec for rule in self.rules if rule.matches(name or "", ndim, nbytes))
        codec = next(matching, None)
        if text in UNCONVERTED:
            return codec if codec is not None and codec.keeps_every_bit else parse_encoder("raw")
        if codec is not None:
            return codec
        raise ParameterError(
            f"policy: no rule matches a tensor with name {brief(repr(name))}, ndim {ndim} and "
            f"{nbytes} bytes; a last rule with only a codec matches every tensor"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the canonical source: ``Policy(policy.to_dict()) == policy``."""
        return {"rules": [rule.to_dict() for rule in self.rules]}

    def to_json(self) -> str:
        """Return the canonical source as JSON, with one line for each rule."""
        lines = ",\n  ".join(json.dumps(rule.to_dict()) for rule in self.rules)
        return f'{{"rules": [\n  {lines}\n]}}'

    def __repr__(self) -> str:
        """Return the Python expression that builds this policy."""
        return f"Policy({self.to_dict()['rules']!r})"


class PrefixedPolicy(Policy):
    """Policy of names ``PREFIX/NAME``, whose rules see ``NAME`` only.

    Parameters
    ----------
    policy : Policy
    """

    def __init__(self, policy: Policy) -> None:
        object.__setattr__(self, "rules", policy.rules)

    def codec(self, name: str | None, shape: ShapeLike, dtype: object) -> Codec:
        """See `Policy.codec`; the prefix ends at the first slash."""
        return super().codec((name or "").partition("/")[2], shape, dtype)


def matches_any(name: str, globs: Iterable[str]) -> bool:
    """Return whether a name matches one of the globs; see `Policy` for their syntax."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def checked_globs(exclude: object) -> tuple[str, ...]:
    """Return the argument `exclude` as a tuple of globs, or raise `ParameterError`."""
    globs = (exclude,) if isinstance(exclude, str) else exclude
    if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
        raise ParameterError.of("exclude", exclude, "a glob or a sequence of globs")
    return tuple(globs)


def policy_of(codec: CodecLike | Policy, argument: str = "codec") -> Policy:
    """Return a policy as it is, and a codec as the policy that uses it for all tensors.

    Errors begin with the name of the argument.
    """
    if isinstance(codec, Policy):
        return codec
    parsed = parse_encoder(codec) if argument == "codec" else _codec(argument, codec)
    return Policy([{"codec": parsed}])


def _rules(source: object) -> tuple[Rule, ...]:
    if isinstance(source, Mapping) and "rules" not in source:
        rules = [_name_rule(glob, spec) for glob, spec in source.items()]
    elif isinstance(source, Mapping):
        _check_keys("policy", source, ("rules",))
        if not isinstance(source["rules"], (list, tuple)):
            raise ParameterError.of("policy.rules", source["rules"], "a list of rules")
        return _rules(source["rules"])
    elif isinstance(source, (list, tuple)):
        rules = [_rule(f"policy.rules[{index}]", rule) for index, rule in enumerate(source)]
    else:
        raise ParameterError.of("policy", source, _SOURCE)
    if not rules:
        raise ParameterError.of("policy", source, _SOURCE + "; not empty")
    return tuple(rules)


def _name_rule(glob: object, spec: object) -> Rule:
    """Return the rule for an item of ``{glob: spec}``."""
    if glob in _KEYS:
        # The caller forgot the list around a rule, or passed the mapping of a codec.
        raise ParameterError.of(
            f"policy.{glob}",
            spec,
            f"in a rule in a list; for a tensor of that name, write [{glob[0]}]{glob[1:]}",
        )
    if not isinstance(glob, str):
        raise ParameterError.of("policy", glob, _SOURCE)
    return Rule(_codec(_path_to("policy", glob), spec), (glob,), (), 0, _MAX_NBYTES)


def _rule(path: str, rule: object) -> Rule:
    """Return the rule for a mapping; `path` is its place in the source, for error messages."""
    if not isinstance(rule, Mapping):
        raise ParameterError.of(path, rule, f"a mapping with the keys {', '.join(_KEYS)}")
    _check_keys(path, rule, _KEYS)
    if "codec" not in rule:
        raise ParameterError(f"{path}.codec is missing: must be a spec, a mapping or a Codec")
    min_bytes = _nbytes(f"{path}.min_bytes", rule.get("min_bytes", 0))
    max_bytes = _nbytes(f"{path}.max_bytes", rule.get("max_bytes", _MAX_NBYTES))
    if min_bytes > max_bytes:
        raise ParameterError.of(f"{path}.min_bytes", min_bytes, f"at most max_bytes={max_bytes}")
    return Rule(
        _codec(f"{path}.codec", rule["codec"]),
        _names(f"{path}.name", rule["name"]) if "name" in rule else (),
        _ndims(f"{path}.ndim", rule["ndim"]) if "ndim" in rule else (),
        min_bytes,
        max_bytes,
    )


def _check_keys(path: str, mapping: Mapping[object, object], keys: tuple[str, ...]) -> None:
    for key, value in mapping.items():
        if key not in keys:
            allowed = f"left out; the keys are {', '.join(keys)}{suggestion(key, keys)}"
            raise ParameterError.of(_path_to(path, key), value, allowed)


def _path_to(path: str, key: object) -> str:
    """Return the path of the value that a key of a mapping has."""
    is_plain = isinstance(key, str) and key.isidentifier()
    return f"{path}.{brief(str(key))}" if is_plain else f"{path}[{brief(repr(key))}]"


def _codec(path: str, spec: Any) -> Codec:
    try:
        return parse_encoder(spec)
    except ParameterError as error:
        raise ParameterError(f"{path}: {error}") from None


def _names(path: str, value: object) -> tuple[str, ...]:
    globs = value if isinstance(value, (list, tuple)) else [value]
    if not globs or not all(isinstance(glob, str) for glob in globs):
        raise ParameterError.of(path, value, "a glob or a list of globs")
    return tuple(dict.fromkeys(globs))


def _ndims(path: str, value: object) -> tuple[int, ...]:
    ndims = value if isinstance(value, (list, tuple)) else [value]
    allowed = f"an integer from 0 to {MAX_NDIM}, or a list of such"
    if not ndims:
        raise ParameterError.of(path, value, allowed)
    return tuple(sorted({check_integer(path, ndim, 0, MAX_NDIM, allowed) for ndim in ndims}))


def _nbytes(path: str, value: object) -> int:
    return check_integer(path, value, 0, _MAX_NBYTES, "an integer from 0 to 2**63 - 1")


class _Pairs(list[tuple[str, object]]):
    """Items of a JSON object, duplicate keys included."""


def _from_json(text: str | bytes) -> object:
    """Parse JSON to the mappings and lists that `Policy` takes."""
    if not isinstance(text, (str, bytes)):
        raise ParameterError.of("policy", text, "JSON text; Policy(...) takes mappings and lists")
    try:
        source = json.loads(
            text if isinstance(text, str) else text.decode("utf-8-sig"),
            object_pairs_hook=_Pairs,
            # Python may refuse to parse integers of many digits; floats are refused later.
            parse_int=lambda digits: int(digits) if len(digits) <= 20 else float(digits),
        )
        return _plain("policy.rules" if type(source) is list else "policy", source)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise ParameterError.of("policy", text, f"JSON: {error.msg} at {position}") from None
    except UnicodeDecodeError as error:
        raise ParameterError.of("policy", text, f"UTF-8: byte {error.start} is not") from None
    except RecursionError:
        raise ParameterError(_TOO_DEEP) from None


def _plain(path: str, value: object) -> object:
    """Turn `_Pairs` into dicts; refuse duplicate keys, NaN and Infinity."""
    if isinstance(value, _Pairs):
        mapping: dict[str, object] = {}
        for key, item in value:
            item_path = _path_to(path, key)
            if key in mapping:
                raise ParameterError.of(item_path, item, "given once, but this is the second")
            mapping[key] = _plain(item_path, item)
        return mapping
    if isinstance(value, list):
        return [_plain(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ParameterError.of(path, value, "a finite number")
    return value
