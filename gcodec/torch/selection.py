"""Selection of the tensors that a codec compresses; the other tensors are sent as they are."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from typing import Any

from gcodec.codec import Codec, CodecLike
from gcodec.codecs.raw import Raw
from gcodec.policy import Policy, checked_globs, matches_any, policy_of
from gcodec.wire.kinds import check_integer

_DENSE = Raw()


def joined_policy(policy: object, codec: CodecLike | Policy, argument: str = "codec") -> Policy:
    """Return the rules of `policy`, followed by those of `codec`, as one policy.

    Parameters
    ----------
    policy : Policy or its source, or None
    codec : str, mapping, Codec or Policy
    argument : str
        Name of the argument `codec` of the caller, for errors.
    """
    first = policy if policy is None or isinstance(policy, Policy) else Policy(policy)
    rules = (*(first.rules if first else ()), *policy_of(codec, argument).rules)
    return Policy([rule.to_dict() for rule in rules])


def with_dense_rules(
    codec: CodecLike | Policy, exclude: object, min_numel: object, argument: str = "codec"
) -> Policy:
    """Return the policy of `codec` that first picks ``raw`` for small and excluded tensors.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
    exclude : str or sequence of str
        Globs of names.
    min_numel : int
        Tensors with fewer elements, or with fewer than two dimensions, are small.
    argument : str
        Name of the argument `codec` of the caller, for errors.

    Raises
    ------
    ParameterError
        If an argument is invalid.
    """
    policy = policy_of(codec, argument)
    allowed = "an integer from 0 to 2**32"
    least = check_integer("min_numel", min_numel, 0, 1 << 32, allowed)
    globs = checked_globs(exclude)
    rules: list[dict[str, Any]] = [{"ndim": [0, 1], "codec": "raw"}]
    if globs:
        rules.append({"name": list(globs), "codec": "raw"})
    if least:
        rules.append({"max_bytes": 4 * least - 1, "codec": "raw"})
    return Policy([*rules, *(rule.to_dict() for rule in policy.rules)])


def lossy_codec(policy: Policy, name: str, shape: tuple[int, ...]) -> Codec | None:
    """Return the codec of a float32 tensor, or None if the tensor is sent as it is."""
    codec = policy.codec(name, shape, "float32")
    return None if codec == _DENSE else codec


def is_lossy(policy: Policy) -> bool:
    """Return whether any rule of a policy has a codec other than ``raw``."""
    return any(rule.codec != _DENSE for rule in policy.rules)


def globs_of(policies: Iterable[Policy]) -> list[str]:
    """Return the globs of all policies."""
    return [glob for policy in policies for rule in policy.rules for glob in rule.names]


def warn_of_unmatched(caller: str, globs: Iterable[str], names: Collection[str]) -> None:
    """Warn the caller's caller of each glob that matches none of a model's parameters."""
    for glob in dict.fromkeys(globs):
        if not any(matches_any(name, [glob]) for name in names):
            message = f"{caller}: no parameter of the model matches {glob!r}"
            warnings.warn(message, stacklevel=3)


def lossy_codecs(policies: Iterable[Policy]) -> str:
    """Return the specs of all lossy codecs, for a text about an object."""
    codecs = [rule.codec for policy in policies for rule in policy.rules]
    return ", ".join(dict.fromkeys(str(codec) for codec in codecs if codec != _DENSE)) or "raw"
