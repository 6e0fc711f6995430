"""Residuals, step counts and priors of tensors, and the arrays that hold the residuals."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from gcodec.codec import Codec, Symbols
from gcodec.errors import ParameterError
from gcodec.runtime import Array
from gcodec.runtime.device import Device, device_of, host
from gcodec.runtime.memory import empty_beside

_T = TypeVar("_T")

_ACQUIRE, _RELEASE = operator.methodcaller("acquire"), operator.methodcaller("release")
_ZERO = np.zeros(1, np.float32)
_ZERO.flags.writeable = False


def no_residual(shape: tuple[int, ...]) -> np.ndarray:
    """Return the residual of a tensor that was sent exactly: zeros that take no memory."""
    return np.ndarray(shape, np.float32, _ZERO, strides=(0,) * len(shape))


def is_no_residual(residual: Array) -> bool:
    """Return whether a residual is a `no_residual`, which is on the host and not contiguous."""
    return getattr(residual, "base", None) is _ZERO


class SpareArrays:
    """Unused float32 arrays, by device and number of elements.

    A step reads one array and writes another. The array that it has read then serves the next
    tensor of the same size, so tensors that are compressed one by one need one array more than
    there are tensors of their size, and those that are compressed together twice as many. The
    class is thread-safe: each array goes to one thread only.
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

        Parts of a shared array are not kept, and neither is a `no_residual`.
        """
        owner = getattr(array, "base", None)
        is_shared = owner is not None and self._shared.get(id(owner)) is owner
        if is_shared or is_no_residual(array):
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


class TensorState(NamedTuple):
    """Complete state of one tensor.

    One assignment replaces it, so no interrupt, fork or thread sees an incomplete step.

    Attributes
    ----------
    memory : Memory
    is_shown : bool
        Whether a caller of `residual`, or a copy of the object, may read the array forever.
    gradient_norm : float or None
    group : Group or None
        Group of the last step, if the tensor shared a frame there.
    """

    memory: Memory
    is_shown: bool = False
    gradient_norm: float | None = None
    group: Group | None = None

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
        return {
            name: TensorState(Memory(part, count + 1, None), group=self.group)
            for name, part, count in members
        }


class Tensors:
    """States by tensor name, a lock for each name, and spare arrays.

    Only the holder of a name's lock may read or replace its state. The methods take the lock,
    except `replace` and `replace_many`, whose callers hold it during the whole step. A signal
    handler, which may interrupt a step, reads the state before it, and changes nothing.

    A step never writes to the array that it reads. After the step, another step may write to that
    array, unless it was shown or is lent.
    """

    def __init__(self, states: Mapping[str, TensorState] | None = None) -> None:
        self.states: dict[str, TensorState] = dict(states or {})
        self.spares = SpareArrays()
        self._locks: dict[tuple[int, str], threading.RLock] = {}
        self._loans: dict[int, int] = {}  # number of unreturned memories, by the array's identity
        self._shown: dict[int, Array] = {}  # lent and shown arrays that no state has any more
        # Arrays that were lent, by identity; steps may write to them, unless they are lent again.
        self._returned: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()

    def lock(self, name: str) -> threading.RLock:
        """Return the lock of a name; a thread that holds it may take it again, to read.

        A forked child has its own locks, because it has no thread to release the parent's locks.
        """
        key = os.getpid(), name
        lock = self._locks.get(key)
        # `setdefault` is atomic: threads that arrive together get the same lock.
        return self._locks.setdefault(key, threading.RLock()) if lock is None else lock

    def free_lock(self, name: str) -> threading.RLock:
        """Return the lock of a name, to change its state.

        Raises
        ------
        ParameterError
            If this thread holds the lock: a signal handler has interrupted a call for the name.
        """
        lock = self.lock(name)
        if _is_own(lock):
            allowed = (
                "a tensor that no step in this thread uses; a signal handler may only read it"
            )
            raise ParameterError.of("name", name, allowed)
        return lock

    def replace(self, name: str, read: Array, state: TensorState) -> None:
        """Set the state after a step that has read the residual `read`, which becomes spare."""
        before = self.states.get(name)
        self.states[name] = state  # first: an interrupt may come at any time
        self._release(before, read, state)

    def replace_many(
        self, steps: Mapping[str, tuple[Array, TensorState]], groups: Sequence[GroupStep]
    ) -> None:
        """Set the states after the steps of tensors, see `replace`, and of groups."""
        names = [*steps, *(name for group in groups for name in group.names)]
        before = {name: self.states.get(name) for name in names}
        states = {name: state for name, (_, state) in steps.items()}
        for group in groups:
            states |= group.states()
        self.states.update(states)  # at once: an interrupt may come at any time
        for name, (read, state) in steps.items():
            self._release(before[name], read, state)
        for group in groups:
            self.spares.share(group.group.residual)
            last = _common_group([before[name] for name in group.names])
            replaced = list(filter(None, map(before.get, group.names)))
            if last is not None and not any(map(self._is_read, replaced)):
                self.spares.give_shared(last.residual)
                continue
            for old in replaced:
                self._drop(old)

    def residual_of(self, names: tuple[str, ...], arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the residuals of a group, end to end; the caller holds the locks."""
        before = [self.states.get(name) for name in names]
        for name, state, array in zip(names, before, arrays, strict=True):
            if state is not None and state.array.shape != array.shape:
                allowed = f"{state.array.shape} for {name!r}"
                raise ParameterError.of("grads.shape", array.shape, allowed)
        if (last := _common_group(before)) is not None:
            return last.residual
        parts = [
            np.zeros(array.size, np.float32) if state is None else host(state.array).reshape(-1)
            for state, array in zip(before, arrays, strict=True)
        ]
        return np.concatenate(parts)

    def while_locked(self, names: Iterable[str], work: Callable[[], _T]) -> _T:
        """Call a function while the locks of several names are held, and return its result.

        Python raises an interrupt where a function begins, and after each call. So one call takes
        all locks, another one releases them, and both run in C; otherwise an interrupt could leave
        a lock taken, for which later calls would wait forever.
        """
        # In one order, so that none waits forever.
        locks = [self.free_lock(name) for name in sorted(names)]
        held = list[threading.RLock]()
        releases = map(_RELEASE, held)
        try:
            held.extend(filter(_ACQUIRE, locks))
            return work()
        finally:
            any(releases)

    def show(self, name: str) -> TensorState | None:
        """Return the state of a tensor; no later step will write to its array."""
        lock = self.lock(name)
        is_interrupted = _is_own(lock)
        with lock:
            if (state := self.states.get(name)) is None:
                return None
            if is_interrupted:  # by a signal; the step may be about to replace the state
                return state._replace(memory=state.memory._replace(residual=state.array.copy()))
            state = self.states[name] = state._replace(is_shown=True)
            return state

    def lend(self, name: str) -> Memory:
        """Return the memory of a tensor; no step writes to its array before `take_back`."""
        with self.free_lock(name):
            if (state := self.states.get(name)) is None:
                return Memory(None, 0, None)
            self._loans[id(state.array)] = self._loans.get(id(state.array), 0) + 1
            return state.memory

    def restore(self, name: str, memory: Memory) -> None:
        """Restore a memory that is still lent, or copy that of another object.

        Raises
        ------
        ParameterError
            If the memory was taken back.
        """
        with self.free_lock(name):
            before, array = self.states.get(name), memory.residual
            if array is None:
                self.states.pop(name, None)
            else:
                is_current = before is not None and before.array is array
                if not is_current and id(array) not in self._loans:
                    if self._returned.get(id(array)) is array:
                        allowed = "restored before it is released by forget, not after"
                        raise ParameterError(f"memory: must be {allowed}")
                    array = array.copy()  # the other object may write to its own
                is_shown = self._shown.pop(id(array), None) is not None
                norm = None
                if before is not None:
                    norm = before.gradient_norm
                    is_shown |= before.is_shown and is_current
                self.states[name] = TensorState(memory._replace(residual=array), is_shown, norm)
            if before is not None and before.array is not array:
                self._drop(before)

    def take_back(self, name: str, array: Array) -> None:
        """End one loan of an array."""
        with self.free_lock(name):
            loans = self._loans.pop(id(array), 0)
            if loans > 1:
                self._loans[id(array)] = loans - 1
                return
            if loans:
                self._returned[id(array)] = array
            state = self.states.get(name)
            is_current = state is not None and state.array is array
            if loans and not is_current and self._shown.pop(id(array), None) is None:
                self.spares.give(array)

    def _is_read(self, state: TensorState) -> bool:
        """Return whether the array of a state has other readers than the steps."""
        return state.is_shown or id(state.array) in self._loans

    def _release(self, before: TensorState | None, read: Array, state: TensorState) -> None:
        """Release the arrays of the state before a step, and what the step has read."""
        if before is not None and self._is_read(before):
            self._drop(before)
        elif device_of(read) is device_of(state.array):
            self.spares.give(read)

    def _drop(self, state: TensorState) -> None:
        """Release the array of a state that was replaced."""
        if not self._is_read(state):
            self.spares.give(state.array)
        elif state.is_shown and id(state.array) in self._loans:
            self._shown[id(state.array)] = state.array


def _is_own(lock: threading.RLock) -> bool:
    """Return whether this thread holds a lock, as `threading.Condition` asks it."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def _common_group(states: Sequence[TensorState | None]) -> Group | None:
    """Return the group whose residuals are those of all states, in this order, or None."""
    group = None if states[0] is None else states[0].group
    return group if group is not None and group.is_of(states) else None
