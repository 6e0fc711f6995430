"""The flat buffers of FSDP2: the parameters in them, their order, and the shapes of their shards.

FSDP2 concatenates the shards of a module's parameters, padded to equal size on all ranks, and
hands over the buffer without names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

UNCUT = " values"
"""End of the name of a piece that is not cut into parameters."""


class Piece(NamedTuple):
    """Shard of one parameter in a flat buffer, padded to equal size on all ranks.

    Attributes
    ----------
    name : str
    shape : tuple of int
    members : sequence of str
        Parameters that a piece which is not cut may contain; empty for the shard of one.
    """

    name: str
    shape: tuple[int, ...]
    members: Sequence[str] = ()


class Layout(NamedTuple):
    """Parameters of one module in the order in which FSDP2 concatenates them.

    Attributes
    ----------
    module : str
        Name of the module.
    parameters : sequence of (name, parameter)
    group : sequence of (name, parameter)
        Parameters of all modules that were sharded together with this one, in any order.
    place : int
        Number of this rank among those that average the gradients. With tensor parallelism, ranks
        that hold the same shard have the same one, so they round it in the same way.
    """

    module: str
    parameters: Sequence[tuple[str, Any]]
    group: Sequence[tuple[str, Any]]
    place: int

    @property
    def title(self) -> str:
        """Name of the module for messages."""
        return repr(self.module) if self.module else "the root module"

    def pieces(self, numel: int, size: int, *, trainable: bool) -> list[Piece]:
        """Cut a rank's part of a buffer into the shards of the parameters.

        A part of another size, such as that of a module with unused parameters, is one piece, and
        so is that of several modules that were sharded together.

        Parameters
        ----------
        numel : int
            Number of elements of the part.
        size : int
            Number of ranks over which each parameter is sharded.
        trainable : bool
            Whether the buffer contains only the parameters that require gradients now, because
            training may freeze and unfreeze some.
        """
        own, members = (
            [(name, p) for name, p in parameters if p.requires_grad or not trainable]
            for parameters in (self.parameters, self.group)
        )
        pieces = [Piece(name, shard_shape(parameter, size)) for name, parameter in own]
        is_whole = sum(math.prod(piece.shape) for piece in pieces) == numel
        if is_whole and len(own) == len(members):
            return pieces
        name = f"{self.module}.{numel}{UNCUT}" if self.module else f"{numel}{UNCUT}"
        return [Piece(name, (1, numel), [name for name, _ in members])]


def managed_parameters(module: Any, fsdp_module: type) -> list[torch.Tensor]:
    """Return the parameters that FSDP2 concatenates for a module, in its order."""
    ordered: dict[torch.Tensor, None] = {}  # ordered, and compared by identity
    visited = set()

    def visit(module: Any) -> None:
        visited.add(module)
        for child in module.children():
            if child not in visited and not isinstance(child, fsdp_module):
                visit(child)
        for parameter in module.parameters(recurse=False):
            ordered[parameter] = None

    visit(module)
    return list(ordered)


def drop_gradients(state: Any) -> None:
    """Drop the gradients that a module's state of FSDP2 keeps when a backward pass fails.

    `FSDPModule.reset_iter_state` leaves them in PyTorch 2.13, so the next pass would add to them.
    """
    for group in getattr(state, "_fsdp_param_groups", ()):
        for parameter in group.fsdp_params:
            if "unsharded_accumulated_grad" in vars(parameter):  # a property since PyTorch 2.15
                parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):  # since the first all-gather
                parameter._unsharded_param.grad = None


def sharded_dim(parameter: Any) -> int:
    """Return the dimension of a parameter's mesh that shards it: 0, or 1 with HSDP.

    In hybrid sharding (HSDP), the first dimension replicates the parameter.
    """
    is_hybrid = parameter.device_mesh.ndim > 1 and parameter.placements[0].is_replicate()
    return int(is_hybrid)


def shard_shape(parameter: Any, size: int) -> tuple[int, ...]:
    """Return the shape of the shard of each of `size` ranks, with its padding."""
    shape, mesh = list(parameter.shape), parameter.device_mesh
    own = sharded_dim(parameter)
    for index, placement in enumerate(parameter.placements):
        if index > own and placement.is_shard():  # of tensor parallelism
            length = shape[placement.dim]
            longest = -(-length // mesh.size(index))
            start = min(length, longest * mesh.get_local_rank(index))
            shape[placement.dim] = min(longest, length - start)
    dim = getattr(parameter.placements[own], "dim", 0)
    shape[dim] = -(-shape[dim] // size)
    return tuple(shape)
