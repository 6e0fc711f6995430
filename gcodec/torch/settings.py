"""Arguments of the DDP hook: checked, and comparable between ranks."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.feedback import Feedback
from gcodec.policy import Policy
from gcodec.wire.kinds import check_integer

_DENSE = Raw()


def joined_policy(policy: Any, codec: str | Mapping[str, Any] | Codec | Policy) -> Policy:
    """Return the rules of `policy`, followed by those of `codec`, as one policy.

    Parameters
    ----------
    policy : Policy or its source, or None
    codec : str, mapping, Codec or Policy
    """
    first = policy if policy is None or isinstance(policy, Policy) else Policy(policy)
    second = codec if isinstance(codec, Policy) else Policy([{"codec": parse(codec)}])
    rules = (*(first.rules if first else ()), *second.rules)
    return Policy([rule.to_dict() for rule in rules])


@dataclass(frozen=True)
class Settings:
    """Arguments of `gcodec.torch.ddp_hook` that all ranks must share.

    Parameters
    ----------
    policy : Policy
        Rules that pick the codec of a tensor; see `joined_policy`.
    feedback, decay, start_iter, seed, exclude, min_numel
        See `gcodec.torch.ddp_hook`. `exclude` is stored as a tuple.
    named : bool
        Whether parameters have names.
    keyed : bool
        Whether messages are authenticated.

    Raises
    ------
    ParameterError
        If an argument is out of range, or a rule needs names that the parameters lack.
    """

    policy: Policy
    feedback: bool
    decay: float
    start_iter: int
    seed: int
    exclude: Sequence[str]
    min_numel: int
    named: bool
    keyed: bool

    def __post_init__(self) -> None:
        globs = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
            raise ParameterError.of("exclude", self.exclude, "a glob or a sequence of globs")
        if not self.named:
            if any(rule.names not in ((), ("*",)) for rule in self.policy.rules):
                raise ParameterError("policy: rules with names need model=, which has the names")
            if globs:
                raise ParameterError("exclude: globs need model=, which has the names")
        checked = Feedback(self.policy, decay=self.decay, seed=self.seed)
        if not isinstance(self.feedback, bool):  # "no" would count as true
            raise ParameterError.of("feedback", self.feedback, "True or False")
        for name in ("start_iter", "min_numel"):
            number = check_integer(
                name, getattr(self, name), 0, 1 << 62, "an integer from 0 to 2**62"
            )
            object.__setattr__(self, name, number)
        object.__setattr__(self, "exclude", tuple(globs))
        object.__setattr__(self, "decay", checked.decay)
        object.__setattr__(self, "seed", checked.seed)

    def codec(self, name: str, shape: tuple[int, ...]) -> Codec | None:
        """Return the codec of a parameter's gradient; None if the gradient is sent dense."""
        is_small = len(shape) < 2 or math.prod(shape) < max(self.min_numel, 1)
        if is_small or any(fnmatch.fnmatchcase(name, glob) for glob in self.exclude):
            return None
        codec = self.policy.codec(name, shape, "float32")
        return None if codec == _DENSE else codec

    def to_dict(self) -> dict[str, object]:
        """Return all settings as JSON types; equal settings give equal dicts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"policy": self.policy.to_dict()["rules"]}
