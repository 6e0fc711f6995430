"""Arguments of the DDP hook: checked, comparable between ranks, and what they say of a tensor."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Settings:
    """Arguments of `gcodec.torch.ddp_hook` that all ranks must share.

    Attributes
    ----------
    policy : Policy
        The rules of `policy`, then those of `codec`.
    feedback, decay, start_iter, seed, min_numel
        As given.
    exclude : tuple of str
    named : bool
        Whether parameters have names.
    keyed : bool
        Whether messages are authenticated.
    """

    policy: Policy
    feedback: bool
    decay: float
    start_iter: int
    seed: int
    exclude: tuple[str, ...]
    min_numel: int
    named: bool
    keyed: bool

    @classmethod
    def of(
        cls,
        codec: Any,
        *,
        policy: Any,
        feedback: bool,
        decay: float,
        start_iter: int,
        seed: int,
        exclude: str | Sequence[str],
        min_numel: int,
        named: bool,
        keyed: bool,
    ) -> Settings:
        """Check the arguments; raise `ParameterError`."""
        first = policy if policy is None or isinstance(policy, Policy) else Policy(policy)
        rest = codec if isinstance(codec, Policy) else Policy([{"codec": parse(codec)}])
        rules = (*(first.rules if first else ()), *rest.rules)
        globs = (exclude,) if isinstance(exclude, str) else _globs(exclude)
        by_name = ("policy", [rule for rule in rules if rule.names not in ((), ("*",))])
        for what, given in (by_name, ("exclude", globs)):
            if given and not named:
                raise ParameterError(f"{what}: give model=, whose parameters have the names")
        joined = Policy([rule.to_dict() for rule in rules])
        Feedback(joined, decay=decay, seed=seed)  # checks both
        if not isinstance(feedback, bool):  # "no" would be taken for True
            raise ParameterError.of("feedback", feedback, "True or False")
        allowed = "an integer from 0 to 2**62"
        return cls(
            joined,
            feedback,
            float(decay),
            check_integer("start_iter", start_iter, 0, 1 << 62, allowed),
            int(seed),
            globs,
            check_integer("min_numel", min_numel, 0, 1 << 62, allowed),
            named,
            keyed,
        )

    def codec(self, name: str, shape: tuple[int, ...]) -> Codec | None:
        """Return the codec of a parameter's gradient; None where it is sent dense."""
        size = math.prod(shape)
        small = len(shape) < 2 or size < max(self.min_numel, 1)
        if small or any(fnmatch.fnmatchcase(name, glob) for glob in self.exclude):
            return None
        codec = self.policy.codec(name, shape, "float32")
        return None if codec == _DENSE else codec

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, equal where the settings are."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"policy": self.policy.to_dict()["rules"]}


def _globs(exclude: Any) -> tuple[str, ...]:
    if isinstance(exclude, Sequence) and all(isinstance(glob, str) for glob in exclude):
        return tuple(exclude)
    raise ParameterError.of("exclude", exclude, "a glob or a sequence of globs")
