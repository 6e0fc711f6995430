"""Saved states: their values, shapes of residuals, and, for the DDP hook, places of ranks."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gcodec.errors import ParameterError
from gcodec.training.collectives import share_of
from gcodec.wire.kinds import check_integer

COUNTERS = ("iteration", "rank", "size")
"""Keys of a state_dict that do not come from `Feedback`."""

Arrays = dict[str, np.ndarray]
"""Arrays by name."""

PLACE, SERVER = "place", "server:"
"""A further key, and the prefix of the keys of the means' feedback."""


class Place(NamedTuple):
    """Place of a rank in an exchange, which determines the shares that it keeps residuals of.

    Attributes
    ----------
    local, inside : int
        Number of the rank in its node, and number of ranks of each node.
    node, nodes : int
        Number of the node, and number of nodes.
    two_phase : int
        1 if the exchange between the nodes has two phases, else 0.
    """

    local: int
    inside: int
    node: int
    nodes: int
    two_phase: int

    def shares(self, name: str, gradient: np.ndarray, mean: np.ndarray) -> tuple[Arrays, Arrays]:
        """Return views of the shares that this rank encodes, of a gradient and of its mean."""
        own, own_mean = (share_of(x, self.local, self.inside) for x in (gradient, mean))
        if not self.two_phase:
            return {name: own}, {}
        sent = {f"{i}/{name}": share_of(own, i, self.nodes) for i in range(self.nodes)}
        return sent, {name: share_of(own_mean, self.node, self.nodes)}


class SavedState(NamedTuple):
    """State of one rank: its place, and the arrays of both feedbacks."""

    place: Place
    worker: Mapping[str, np.ndarray]
    server: Mapping[str, np.ndarray]

    @property
    def is_factored(self) -> bool:
        """Whether the state is that of ``collective="factors"``, whose keys begin with a rank."""
        return any(key.partition(":")[0].isdecimal() for key in self.worker)

    def without_factors(self) -> SavedState:
        """Return the state with its residuals as a `Feedback` keeps them."""
        if not self.is_factored:
            return self
        worker = Arrays()
        for key, array in self.worker.items():
            rank, _, rest = key.partition(":")
            kind, _, name = rest.partition(":")
            if not rank.isdecimal():
                worker[key] = array
            elif kind == "residual":
                worker |= {f"residual:{name}": array, f"step:{name}": np.array(1, np.int64)}
        return self._replace(worker=worker)


def parse_state(state: Mapping[str, Any]) -> tuple[dict[str, int], SavedState]:
    """Return the counters and the arrays of a `DdpState.state_dict`, or raise `ParameterError`."""
    counters = saved_counters(state, COUNTERS, "a DdpState's state_dict")
    # A state of "gather" does not contain its place.
    default = Place(0, 1, node=counters["rank"], nodes=counters["size"], two_phase=0)
    try:
        place = Place(*map(operator.index, state.get(PLACE, default)))
    except TypeError:
        raise ParameterError.of(f"state[{PLACE!r}]", state[PLACE], "five integers") from None
    if not (0 <= place.local < place.inside and place.node >= 0 and place.nodes > 0):
        raise ParameterError.of(f"state[{PLACE!r}]", tuple(place), "a place among the ranks")
    arrays = {key: saved_array(x) for key, x in state.items() if key not in (*COUNTERS, PLACE)}
    server = {key.removeprefix(SERVER): x for key, x in arrays.items() if key.startswith(SERVER)}
    worker = {key: x for key, x in arrays.items() if not key.startswith(SERVER)}
    return counters, SavedState(place, worker, server)


def check_shapes(
    arrays: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[int, ...]],
    kinds: Collection[str] = ("residual",),
) -> None:
    """Raise `ParameterError` unless all arrays of some kinds have one of these names and shapes.

    Parameters
    ----------
    arrays : mapping
        Arrays of a state_dict, such as that of a `Feedback`, whose keys are ``"KIND:NAME"``.
    expected : mapping of str to tuple of int
        Shapes by name.
    kinds : collection of str
        Kinds of the arrays that are checked; others may have any name and shape.
    """
    for key in sorted(arrays):
        kind, _, name = key.partition(":")
        if kind not in kinds:
            continue
        if name not in expected:
            raise ParameterError.of("state", key, f"the {kind} of a parameter of the model")
        if arrays[key].shape != expected[name]:
            allowed = f"{expected[name]}, as in the model"
            raise ParameterError.of(f"state[{key!r}].shape", arrays[key].shape, allowed)


def check_state(state: SavedState, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ParameterError` unless all residuals are those of parameters with these shapes."""
    worker: dict[str, tuple[int, ...]] = {}
    server: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        whole = np.empty(shape, np.float32)
        both = state.place.shares(name, whole, whole)
        for target, shares in zip((worker, server), both, strict=True):
            target |= {key: share.shape for key, share in shares.items()}
    check_shapes(state.worker, worker)
    check_shapes(state.server, server)


def redistribute(
    states: Sequence[SavedState], own: Place, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Arrays, Arrays]:
    """Return the arrays of both feedbacks of a rank, from the states of all ranks of another run.

    What the ranks still owed to the mean gradient stays the same: every rank receives the mean
    of the residuals over the nodes, and a mean's residual goes to the new owner of the share.
    Priors of codecs are left out, which costs time and no accuracy.

    Parameters
    ----------
    states : sequence of SavedState
    own : Place
    shapes : mapping of str to tuple of int
        Shapes of all parameters.

    Raises
    ------
    ParameterError
        If a residual has an unexpected name or shape.
    """
    worker, server = Arrays(), Arrays()
    states = [state.without_factors() for state in states]
    unread = {
        id(arrays): {key for key in arrays if key.startswith("residual:")}
        for state in states
        for arrays in (state.worker, state.server)
    }
    for name, shape in shapes.items():
        # What the ranks owe to the mean gradient, and the owners of shares to their means.
        owed, owed_by_owners = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        count = 0
        for place, *saved in states:
            scales = np.float32(1 / place.nodes), np.float32(1)
            both = place.shares(name, owed, owed_by_owners)
            for arrays, shares, scale in zip(saved, both, scales, strict=True):
                present = {key: x for key, x in shares.items() if f"residual:{key}" in arrays}
                count = max(count, _add_residuals(arrays, present, scale))
                unread[id(arrays)] -= {f"residual:{key}" for key in present}
        if not count:
            continue
        if not own.two_phase:
            owed += owed_by_owners
        both = own.shares(name, owed, owed_by_owners)
        for target, shares in zip((worker, server), both, strict=True):
            for key, share in shares.items():
                if share.size:
                    target[f"residual:{key}"] = share.copy()
                    target[f"step:{key}"] = np.array(count, np.int64)
    for keys in unread.values():
        for key in sorted(keys):
            raise ParameterError.of("state", key, "the residual of a parameter of the model")
    return worker, server


def _add_residuals(
    arrays: Mapping[str, np.ndarray], shares: Mapping[str, np.ndarray], scale: np.float32
) -> int:
    """Add ``scale`` times the residual of each share to it; return the largest step count."""
    count = 0
    for key, share in shares.items():
        residual = arrays[f"residual:{key}"]
        if residual.shape != share.shape:
            name = f"state['residual:{key}'].shape"
            raise ParameterError.of(name, residual.shape, str(share.shape))
        if f"step:{key}" not in arrays:
            raise ParameterError.of("state", f"residual:{key}", "with a step count")
        share += residual * scale
        count = max(count, int(arrays[f"step:{key}"]))
    return count


def warn_of_missing_residuals(caller: str) -> None:
    """Warn the caller's caller of a state_dict that lacks the residuals of its steps."""
    warnings.warn(
        f"{caller}: the state has no residuals, so feedback starts anew; "
        "torch.distributed.checkpoint loads none into a new state_dict, but torch.load does",
        stacklevel=3,
    )


def warn_of_lost_residuals(caller: str) -> None:
    """Warn the caller's caller of the residuals in a state_dict that nothing will send."""
    warnings.warn(
        f"{caller}: the state has residuals, but there is no feedback; what they contain is lost",
        stacklevel=3,
    )


def saved_counters(state: object, names: Sequence[str], allowed: str) -> dict[str, int]:
    """Return the counters of a state_dict by name.

    Raises
    ------
    ParameterError
        If a counter is missing or no integer, or a key is no text; the message states what is
        `allowed`.
    """
    if not isinstance(state, Mapping):
        raise ParameterError.of("state", state, allowed)
    for key in state:
        if not isinstance(key, str):
            raise ParameterError.of("state", key, allowed)
    if any(name not in state for name in names):
        raise ParameterError.of("state", sorted(state)[:3] or state, allowed)
    values = {name: state[name] for name in names}
    try:
        return {name: saved_count(f"state[{name!r}]", value) for name, value in values.items()}
    except TypeError:
        raise ParameterError.of("state", values, f"{allowed}, with integers") from None


def saved_count(name: str, value: Any) -> int:
    """Return a count of a state_dict as an integer.

    Raises
    ------
    ParameterError
        If the count is out of range; the message states the name.
    TypeError
        If the value is no integer.
    """
    return check_integer(name, operator.index(value), 0, 1 << 62, "an integer from 0 to 2**62")


def saved_array(value: Any) -> np.ndarray:
    """Return a value of a state_dict as an array; `torch.load` puts tensors on any device."""
    return np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
