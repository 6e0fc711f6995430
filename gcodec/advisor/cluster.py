"""Who has to agree on a gradient, what a step does, and what messages there may be."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from gcodec.advisor.links import Link, members_of, seconds
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between, check_integer

Level = Literal["inside", "between"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who has to agree on a gradient.

    Parameters
    ----------
    nodes : int
    gpus : int
        Of each node.
    between : Link, optional
        Of a node, which its GPUs share; needed where there are several nodes.
    inside : Link, optional
        Of a GPU to the others of its node; needed where there are several.

    Raises
    ------
    ParameterError
    """

    nodes: int = 1
    gpus: int = 1
    between: Link | None = None
    inside: Link | None = None

    def __post_init__(self) -> None:
        for members, name in (("nodes", "between"), ("gpus", "inside")):
            count = members_of(members, getattr(self, members))
            link = getattr(self, name)
            if not isinstance(link, (Link, type(None))) or (link is None and count > 1):
                raise ParameterError.of(name, link, f"a Link, for {count} {members}")

    def group(self, level: Level) -> tuple[int, Link | None]:
        """Return how many members a level has, and what connects them."""
        return (self.gpus, self.inside) if level == "inside" else (self.nodes, self.between)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Those where there is somebody to agree with."""
        both: tuple[Level, ...] = ("inside", "between")
        return tuple(level for level in both if self.group(level)[0] > 1)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step does.

    Parameters
    ----------
    values : int
        Of the gradient, from 1 on; each GPU has one.
    compute : float
        Seconds of a forward and backward pass.
    bits : float
        Of a value that is not compressed: 32 for float32, 16 for float16 and bfloat16.
    overlap : float
        Share of the computation, 0 to 1, that communication may run beside.
    encode, decode : float
        Values that a GPU codes in a second; infinite to leave that out. It computes nothing
        meanwhile.

    Raises
    ------
    ParameterError
    """

    values: int
    compute: float
    bits: float = 32.0
    overlap: float = 1.0
    encode: float = math.inf
    decode: float = math.inf

    def __post_init__(self) -> None:
        check_integer("values", self.values, 1, 2**63 - 1, "an integer from 1 to 2**63 - 1")
        seconds("compute", self.compute)
        check_between("bits", self.bits, 1e-9, 64, "a number of bits above 0, up to 64")
        check_between("overlap", self.overlap, 0, 1, "a share from 0 to 1")
        for name in ("encode", "decode"):
            allowed = "a number of values a second, 1 or more"
            check_between(name, getattr(self, name), 1, math.inf, allowed)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A codec, as far as costs depend on it.

    Parameters
    ----------
    name : str
    bits : float
        Of its messages, per value.
    error : float, optional
        ‖x − x̂‖²/‖x‖² of a message; None where it is not known.
    converges : bool
        Whether it may be advised at all: `gcodec.convergence` tells.

    Raises
    ------
    ParameterError
    """

    name: str
    bits: float
    error: float | None = None
    converges: bool = True

    def __post_init__(self) -> None:
        check_between("bits", self.bits, 0, 1e6, "a number of bits from 0 to 1e6")
        if self.error is not None:
            check_between("error", self.error, 0, math.inf, "a number from 0 on, or None")
