"""Arguments of the DDP hook that all ranks must share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.feedback import Feedback
from gcodec.policy import Policy, checked_globs, matches_any
from gcodec.torch.factors import check_factors
from gcodec.torch.selection import globs_of, lossy_codec
from gcodec.wire.kinds import check_choice, check_flag, check_integer

Collective = Literal["gather", "two-phase", "hierarchical", "auto", "factors"]


@dataclass(frozen=True)
class Settings:
    """Arguments of `gcodec.torch.ddp_hook` that all ranks must share.

    Parameters
    ----------
    policy : Policy
        Rules that pick the codec of a tensor; see `joined_policy`.
    feedback, decay, start_iter, seed, exclude, min_numel, group_below
        See `gcodec.torch.ddp_hook`. `exclude` is stored as a tuple.
    named : bool
        Whether parameters have names.
    keyed : bool
        Whether messages are authenticated.
    collective, second
        See `gcodec.torch.ddp_hook`. `second` is a policy; None is the same as `policy`.
    inside : int or str or None
        Number of ranks of a node, or the type of the argument that names them.

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
    group_below: int
    named: bool
    keyed: bool
    collective: Collective = "gather"
    second: Policy | None = None
    inside: int | str | None = None

    def __post_init__(self) -> None:
        globs = checked_globs(self.exclude)
        check_choice("collective", self.collective, get_args(Collective))
        if self.collective == "factors":
            check_factors(self.policy)
            if self.keyed:
                raise ParameterError("key: sums of factors cannot be authenticated")
            if self.feedback is not True or self.decay != 1:
                raise ParameterError("feedback, decay: PowerSGD needs feedback with decay=1")
        object.__setattr__(self, "second", self.means)
        rules = (*self.policy.rules, *self.means.rules)
        if not self.named:
            if any(rule.names not in ((), ("*",)) for rule in rules):
                raise ParameterError("policy: rules with names need model=, which has the names")
            if globs:
                raise ParameterError("exclude: globs need model=, which has the names")
        checked = Feedback(self.policy, decay=self.decay, seed=self.seed)
        check_flag("feedback", self.feedback)
        for name in ("start_iter", "min_numel", "group_below"):
            number = check_integer(
                name, getattr(self, name), 0, 1 << 62, "an integer from 0 to 2**62"
            )
            object.__setattr__(self, name, number)
        object.__setattr__(self, "exclude", globs)
        object.__setattr__(self, "decay", checked.decay)
        object.__setattr__(self, "seed", checked.seed)

    def codec(self, name: str, shape: tuple[int, ...]) -> Codec | None:
        """Return the codec of a parameter's gradient; None if the gradient is sent dense."""
        is_small = len(shape) < 2 or math.prod(shape) < max(self.min_numel, 1)
        if is_small or matches_any(name, self.exclude):
            return None
        return lossy_codec(self.policy, name, shape)

    @property
    def means(self) -> Policy:
        """Policy of the means in two phases."""
        return self.policy if self.second is None else self.second

    @property
    def globs(self) -> list[str]:
        """Globs of `exclude` and of the rules of `policy`."""
        return [*self.exclude, *globs_of([self.policy, self.means])]

    def to_dict(self) -> dict[str, object]:
        """Return all settings as JSON types; equal settings give equal dicts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        policies = {name: values[name].to_dict()["rules"] for name in ("policy", "second")}
        return values | policies
