"""Residuals, step counts and priors of tensors, and the arrays that hold the residuals."""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gcodec.codec import Codec, Symbols
from gcodec.errors import ParameterError
from gcodec.runtime import Array
from gcodec.runtime.device import Device, device_of, host
from gcodec.runtime.memory import empty_beside


class SpareArrays:
    """Unused float32 arrays, by device and number of elements.

    A step reads one array and writes another. The array that it has read then serves the next
    tensor of the same size, so each size needs one array more than it has tensors. The class is
    thread-safe: each array goes to one thread only.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Device | None, int], list[Array]] = {}
        # Owners of the memory of groups, by identity.
        self._shared: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()

    def take(self, size: int, beside: Array) -> Array:
        """Return an uninitialized (size,) array on the device of the array `beside`."""
        try:
            return self._arrays[device_of(beside), size].pop()  # atomic
        except (KeyError, IndexError):
            return empty_beside(size, np.float32, beside)

    def give(self, array: Array) -> None:
        """Make an array available; the caller must not read it any more.

        Parts of a shared array are not kept.
        """
        owner = getattr(array, "base", None)
        if owner is not None and self._shared.get(id(owner)) is owner:
            return
        self._arrays.setdefault((device_of(array), array.size), []).append(array.reshape(-1))

    def share(self, array: np.ndarray) -> None:
        """Note that parts of an array on the host are the residuals of several tensors."""
        owner = _owner(array)
        self._shared[id(owner)] = owner

    def give_shared(self, array: np.ndarray) -> None:
        """Make a shared array available; nobody reads any of its parts any more."""
        self._shared.pop(id(_owner(array)), None)
        self.give(array)

    def counts(self) -> list[int]:
        """Return the number of spare arrays of each device and size."""
        return [len(arrays) for arrays in self._arrays.values()]


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of an array on the host."""
    owner = array.base
    return owner if isinstance(owner, np.ndarray) else array


class Memory(NamedTuple):
    """State of one tensor; see `Feedback.memory`.

    Attributes
    ----------
    residual : float32 array or None
        The array itself, not a copy: do not write to it. None before the first gradient.
    step : int
        Number of steps so far.
    prior : tuple or None
        Codec of the last message, and its symbols.
    """

    residual: Array | None
    step: int
    prior: tuple[Codec, Symbols] | None


class Use(enum.Flag):
    """Readers of a residual's array besides the steps.

    A step never writes to the array that it reads. After the step, another step may write to the
    array if it has no other reader.
    """

    OWN = 0
    SHOWN = 1  # a caller of `residual`, or a copy of the object, may read it forever
    BORROWED = 2  # the holder of a `Memory` may read it until `Feedback.forget`


class TensorState(NamedTuple):
    """Complete state of one tensor.

    One assignment replaces it, so no interrupt, fork or thread sees an incomplete step.
    """

    memory: Memory
    use: Use = Use.OWN
    gradient_norm: float | None = None

    @property
    def array(self) -> Array:
        """The residual."""
        return self.memory.residual


class Group(NamedTuple):
    """Residuals of small tensors that share a frame.

    Attributes
    ----------
    residual : (n,) float32 array
        Residuals of all tensors, end to end.
    parts : list of array
        Views of the residual, in the shapes of the tensors.
    """

    residual: np.ndarray
    parts: list[np.ndarray]

    def is_of(self, states: Sequence[TensorState | None]) -> bool:
        """Return whether the states of the tensors still have these residuals."""
        if len(states) != len(self.parts):
            return False
        pairs = zip(states, self.parts, strict=True)
        return all(state is not None and state.array is part for state, part in pairs)


class GroupStep(NamedTuple):
    """Result of a step of small tensors that share a frame.

    Attributes
    ----------
    names : tuple of str
    group : Group
        New residuals.
    counts : list of int
        Number of steps of each tensor before this one.
    frames : list of bytes
        The list of the members, and the frame that they share.
    """

    names: tuple[str, ...]
    group: Group
    counts: list[int]
    frames: list[bytes]

    def states(self) -> dict[str, TensorState]:
        """Return the new states of the tensors."""
        members = zip(self.names, self.group.parts, self.counts, strict=True)
        return {name: TensorState(Memory(part, n + 1, None)) for name, part, n in members}


class Tensors:
    """States by tensor name, a lock for each name, and spare arrays.

    Only the holder of a name's lock may read or replace its state. The methods take the lock,
    except `replace`, whose caller holds it during the whole step.
    """

    def __init__(self, states: Mapping[str, TensorState] | None = None) -> None:
        self.states: dict[str, TensorState] = dict(states or {})
        self.spares = SpareArrays()
        self.groups: dict[tuple[str, ...], Group] = {}
        self._locks: dict[tuple[int, str], threading.Lock] = {}
        self._shown: dict[int, Array] = {}  # borrowed arrays that no state has any more

    def lock(self, name: str) -> threading.Lock:
        """Return the lock of a name.

        A forked child has its own locks, because it has no thread to release the parent's locks.
        """
        key = os.getpid(), name
        lock = self._locks.get(key)
        # `setdefault` is atomic: threads that arrive together get the same lock.
        return self._locks.setdefault(key, threading.Lock()) if lock is None else lock

    def replace(self, name: str, read: Array, state: TensorState) -> None:
        """Set the state after a step that has read the residual `read`, which becomes spare."""
        before = self.states.get(name)
        self.states[name] = state  # first: an interrupt may come at any time
        if before is not None and before.use is not Use.OWN:
            self.drop(before)
        elif device_of(read) is device_of(state.array):
            self.spares.give(read)

    def replace_groups(self, steps: Sequence[GroupStep]) -> None:
        """Set the states of groups after their step; the caller holds the locks of all names."""
        before = [[self.states.get(name) for name in step.names] for step in steps]
        states = {name: state for step in steps for name, state in step.states().items()}
        self.states.update(states)  # at once: an interrupt may come at any time
        for step, old in zip(steps, before, strict=True):
            last = self.groups.get(step.names)
            self.groups[step.names] = step.group
            self.spares.share(step.group.residual)
            known = [state for state in old if state is not None]
            if last is not None and last.is_of(old) and all(s.use is Use.OWN for s in known):
                self.spares.give_shared(last.residual)
                continue
            for state in known:
                self.drop(state)

    def residual_of(self, names: tuple[str, ...], arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the residuals of a group, end to end; the caller holds the locks."""
        before, last = [self.states.get(name) for name in names], self.groups.get(names)
        for name, state, array in zip(names, before, arrays, strict=True):
            if state is not None and state.array.shape != array.shape:
                allowed = f"{state.array.shape} for {name!r}"
                raise ParameterError.of("grads.shape", array.shape, allowed)
        if last is not None and last.is_of(before):
            return last.residual
        parts = [
            np.zeros(array.size, np.float32) if state is None else host(state.array).reshape(-1)
            for state, array in zip(before, arrays, strict=True)
        ]
        return np.concatenate(parts)

    @contextlib.contextmanager
    def locked(self, names: Iterable[str]) -> Iterator[None]:
        """Hold the locks of several names."""
        locks = [self.lock(name) for name in sorted(names)]  # in one order, so none waits forever
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            yield

    def show(self, name: str) -> TensorState | None:
        """Return the state of a tensor; no later step will write to its array."""
        with self.lock(name):
            if (state := self.states.get(name)) is None:
                return None
            state = self.states[name] = state._replace(use=state.use | Use.SHOWN)
            return state

    def lend(self, name: str) -> Memory:
        """Return the memory of a tensor; no step writes to its array before `take_back`."""
        with self.lock(name):
            if (state := self.states.get(name)) is None:
                return Memory(None, 0, None)
            self.states[name] = state._replace(use=state.use | Use.BORROWED)
            return state.memory

    def restore(self, name: str, memory: Memory) -> None:
        """Restore a memory that is still lent."""
        with self.lock(name):
            before = self.states.get(name)
            if memory.residual is None:
                self.states.pop(name, None)
            else:
                use, norm = Use.BORROWED, None
                if before is not None:
                    norm = before.gradient_norm
                    if before.array is memory.residual:
                        use |= before.use
                if self._shown.pop(id(memory.residual), None) is not None:
                    use |= Use.SHOWN
                self.states[name] = TensorState(memory, use, norm)
            if before is not None and before.array is not memory.residual:
                self.drop(before)

    def take_back(self, name: str, array: Array) -> None:
        """End the loan of an array."""
        with self.lock(name):
            state = self.states.get(name)
            if state is not None and state.array is array:
                self.states[name] = state._replace(use=state.use & ~Use.BORROWED)
            elif self._shown.pop(id(array), None) is None:
                self.spares.give(array)

    def drop(self, state: TensorState) -> None:
        """Release the array of a state that was replaced."""
        if state.use is Use.OWN:
            self.spares.give(state.array)
        elif state.use == Use.SHOWN | Use.BORROWED:
            self._shown[id(state.array)] = state.array
