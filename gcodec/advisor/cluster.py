"""The inputs of an advice: the cluster, the work of a step, and the available codecs."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from gcodec.advisor.links import Link, check_members, check_seconds
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between, check_integer

Level = Literal["inside", "between"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Nodes and GPUs that average their gradients.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    gpus : int
        Number of GPUs of each node.
    between : Link, optional
        Link of a node to the other nodes, which its GPUs share; required for several nodes.
    inside : Link, optional
        Link of a GPU to the other GPUs of its node; required for several GPUs.

    Raises
    ------
    ParameterError
        If an argument is out of range, or a required link is missing.
    """

    nodes: int = 1
    gpus: int = 1
    between: Link | None = None
    inside: Link | None = None

    def __post_init__(self) -> None:
        for members, name in (("nodes", "between"), ("gpus", "inside")):
            count = check_members(members, getattr(self, members))
            link = getattr(self, name)
            if not isinstance(link, (Link, type(None))) or (link is None and count > 1):
                raise ParameterError.of(name, link, f"a Link, for {count} {members}")

    def group(self, level: Level) -> tuple[int, Link | None]:
        """Return the number of members at a level, and their link."""
        return (self.gpus, self.inside) if level == "inside" else (self.nodes, self.between)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels with more than one member."""
        both: tuple[Level, ...] = ("inside", "between")
        return tuple(level for level in both if self.group(level)[0] > 1)


@dataclasses.dataclass(frozen=True)
class Work:
    """Work of one training step.

    Parameters
    ----------
    values : int
        Number of values of the gradient, at least 1. Each GPU has one gradient.
    compute : float
        Seconds of a forward and backward pass.
    bits : float
        Bits of an uncompressed value: 32 for float32, 16 for float16 and bfloat16.
    overlap : float
        Fraction of the computation, 0 to 1, during which communication may run.
    encode, decode : float
        Values that a GPU encodes or decodes per second; infinity if that takes no time. The GPU
        computes nothing else meanwhile.

    Raises
    ------
    ParameterError
        If an argument is out of range.
    """

    values: int
    compute: float
    bits: float = 32.0
    overlap: float = 1.0
    encode: float = math.inf
    decode: float = math.inf

    def __post_init__(self) -> None:
        check_integer("values", self.values, 1, 2**63 - 1, "an integer from 1 to 2**63 - 1")
        check_seconds("compute", self.compute)
        check_between("bits", self.bits, 1e-9, 64, "a number of bits above 0, up to 64")
        check_between("overlap", self.overlap, 0, 1, "a share from 0 to 1")
        for name in ("encode", "decode"):
            allowed = "a number of values per second, at least 1"
            check_between(name, getattr(self, name), 1, math.inf, allowed)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The properties of a codec that determine its costs.

    Parameters
    ----------
    name : str
        Name of the codec in the advice.
    bits : float
        Bits of its messages per value.
    error : float, optional
        ‖x − x̂‖²/‖x‖² of a message, or None if it is unknown.
    converges : bool
        Whether training with the codec converges; `law_of` helps to find out. Other schemes are
        not advised.

    Raises
    ------
    ParameterError
        If an argument is out of range.
    """

    name: str
    bits: float
    error: float | None = None
    converges: bool = True

    def __post_init__(self) -> None:
        check_between("bits", self.bits, 0, 1e6, "a number of bits from 0 to 1e6")
        if self.error is not None:
            check_between("error", self.error, 0, math.inf, "a number, at least 0, or None")
