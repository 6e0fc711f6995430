"""Nodes of a group: which ranks share one, and the groups inside of a node and between nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gcodec.errors import ParameterError
from gcodec.torch.communicator import TorchCommunicator
from gcodec.wire.kinds import check_integer

_VARIABLE = "LOCAL_WORLD_SIZE"  # set by torchrun


class Nodes(NamedTuple):
    """Groups of this rank, which determine its place.

    Attributes
    ----------
    inside, between : TorchCommunicator
        Group of this node, and of the ranks with the same number in all nodes.
    """

    inside: TorchCommunicator
    between: TorchCommunicator


def check_inside(inside: object) -> None:
    """Raise `ParameterError` unless the argument `inside` of a hook is valid."""
    if not isinstance(inside, (dist.ProcessGroup, DeviceMesh, type(None))):
        allowed = "a number of ranks, a ProcessGroup, a DeviceMesh or None"
        check_integer("inside", inside, 1, 1 << 20, allowed)


def ranks_inside(
    world: TorchCommunicator, inside: int | dist.ProcessGroup | DeviceMesh | None
) -> list[int] | None:
    """Return the ranks of this node, or None if neither `inside` nor torchrun gives them.

    Parameters
    ----------
    world : TorchCommunicator
        Group of all ranks of the model.
    inside : int, ProcessGroup, DeviceMesh or None
        Number of consecutive ranks of a node; or the group of this node; or a mesh whose last
        dimension lies inside of nodes. None takes the number of ranks from torchrun.
    """
    if isinstance(inside, DeviceMesh):
        inside = inside.get_group(inside.ndim - 1)
    if isinstance(inside, dist.ProcessGroup):
        return sorted(dist.get_process_group_ranks(inside))
    count = int(os.environ.get(_VARIABLE, 0)) if inside is None else inside
    if not count:
        return None
    own = dist.get_rank() // count
    return [rank for rank in world.ranks if rank // count == own]


def find_nodes(
    world: TorchCommunicator, own: Sequence[int], timeout: float | None, backend: str
) -> Nodes:
    """Make the groups of a node with the given ranks; all ranks of `world` call this together.

    Parameters
    ----------
    world : TorchCommunicator
    own : sequence of int
        Ranks of this node.
    timeout : float or None
        See `TorchCommunicator.apart`.
    backend : str
        Backend of the group inside of the node.

    Raises
    ------
    ParameterError
        If the nodes are not disjoint, differ in size, or do not cover the group; on every rank.
    """
    texts = world.all_gather(json.dumps(list(own)).encode())
    nodes = sorted({tuple(json.loads(text)) for text in texts})
    sizes = {len(node) for node in nodes}
    if len(sizes) > 1 or sorted(rank for node in nodes for rank in node) != sorted(world.ranks):
        shown = ", ".join(str(list(node)) for node in nodes)
        raise ParameterError(
            f"inside: the nodes must have equally many ranks and cover the group; they are {shown}"
        )
    inside = TorchCommunicator.apart(list(own), timeout, backend)
    between = TorchCommunicator.apart([each[inside.rank] for each in nodes], timeout)
    return Nodes(inside, between)
