"""The hook for DistributedDataParallel: compressed gradients in place of the all-reduce.

A collective must not be started in the callback of a future: callbacks of several buckets run in
another order on each rank. So the hook hands each bucket to one thread, which has a process group
of its own: it encodes, gathers, decodes in the order of ranks, and completes the future.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
import torch.distributed as dist

from gcodec.arrays.source import inspect
from gcodec.errors import GcodecError, ParameterError
from gcodec.feedback import Feedback
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.runtime.device import has_cupy, host
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.messages import BucketCoder, Key, Part
from gcodec.torch.parameter_names import ParameterNames
from gcodec.torch.settings import Settings
from gcodec.wire.kinds import check_between

_ROOM = 64  # bytes beyond an eighth more than last time, before a second collective is needed
_OWN = ("iteration", "rank", "size")  # keys of a state_dict that are not of `Feedback`


class _Bucket(NamedTuple):
    """What the thread is to do for one bucket.

    Attributes
    ----------
    flat : Tensor
    gradients : sequence of Tensor
        Views of `flat`.
    names : sequence of str
        Of the parameters.
    is_last : bool
        Whether it is the last bucket of its step.
    plain : Future or None
        Of an all-reduce that has begun, for what is not compressed.
    ready : Event or None
        After which a bucket on a CUDA device has its values.
    """

    flat: torch.Tensor
    gradients: Sequence[torch.Tensor]
    names: Sequence[str]
    is_last: bool
    plain: torch.futures.Future[Any] | None
    ready: torch.cuda.Event | None


def ddp_hook(
    codec: Any,
    *,
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None,
    feedback: bool = True,
    decay: float = 1.0,
    start_iter: int = 2,
    seed: int = 0,
    policy: Any = None,
    exclude: str | Sequence[str] = (),
    min_numel: int = 1024,
    process_group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
    key: bytes | None = None,
) -> tuple[DdpState, Callable[[DdpState, dist.GradBucket], torch.futures.Future[torch.Tensor]]]:
    """Make what `DistributedDataParallel.register_comm_hook` takes.

    Gradients are exchanged compressed, by an all-gather, and averaged in float32 in the order of
    ranks, so that all ranks get the same bits. Tensors of one dimension or none, and small ones,
    go along uncompressed. All ranks make the hook, with the same arguments, which the first step
    checks.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        See `gcodec.parse` and `gcodec.Policy`. A tensor whose codec is ``raw`` is sent dense.
    model : Module or iterable of (name, parameter), optional
        Names of parameters, for `policy`, `exclude` and checkpoints; a leading ``module.`` is left
        out. Default: numbers, in the order in which gradients first come.
    feedback : bool
        Whether to add what was not sent to the next step's gradient; see `gcodec.Feedback`.
    decay : float
        Of `gcodec.Feedback`.
    start_iter : int
        Steps of plain all-reduce before the first compressed one.
    seed : int
        Of the run; that of a message is derived from it, step, rank and name.
    policy : Policy or its source, optional
        Rules that are tried before `codec`.
    exclude : str or sequence of str
        Globs; parameters of which one matches are sent dense.
    min_numel : int
        Elements below which a tensor is sent dense.
    process_group : ProcessGroup, optional
        That of the model. Default: the one of all processes.
    timeout : float, optional
        Seconds after which an exchange with a rank that does not answer fails. Default: that of
        torch.distributed.
    key : bytes, optional
        1 to 64 bytes, the same on all ranks. Messages then bear tags that only this key can make,
        and a rank that receives another message fails. The key is in no attribute of `state`.

    Returns
    -------
    state : DdpState
    hook : callable

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import gcodec.torch
    >>> gcodec.torch.ddp_hook("topk:ratio=0.01")
    Traceback (most recent call last):
    ...
    gcodec.errors.ParameterError: ddp_hook: call torch.distributed.init_process_group first
    """
    secret = Key(key)
    settings = Settings.of(
        codec,
        policy=policy,
        feedback=feedback,
        decay=decay,
        start_iter=start_iter,
        seed=seed,
        exclude=exclude,
        min_numel=min_numel,
        named=model is not None,
        keyed=key is not None,
    )
    if not dist.is_initialized():
        raise ParameterError("ddp_hook: call torch.distributed.init_process_group first")
    if timeout is not None:
        check_between("timeout", timeout, 1e-3, 1e9, "seconds, from 0.001 to 1e9")
    state = DdpState(settings, ParameterNames(model), process_group, timeout, secret)
    return state, _hook


class DdpState:
    """What the hook of `ddp_hook` keeps between steps: residuals, by parameter, and counts.

    Attributes
    ----------
    settings : Settings
    iteration : int
        Steps so far; of those that are compressed, the ones that count, see `docs/frameworks.md`.
    sent_nbytes, received_nbytes : int
        Bytes of the messages of the compressed steps so far.
    encode_seconds, decode_seconds : float
        What encoding them took, and decoding and adding up those of all ranks; as measured from
        outside, so beside what else the processor did meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        names: ParameterNames,
        group: dist.ProcessGroup | None,
        timeout: float | None,
        key: Key,
    ) -> None:
        self.settings = settings
        self.iteration = 0
        self.sent_nbytes = self.received_nbytes = 0
        self.encode_seconds = self.decode_seconds = 0.0
        self._names = names
        self._group = group
        if group is not None and not isinstance(group, dist.ProcessGroup):
            allowed = "a ProcessGroup of which this process is a member, or None"
            raise ParameterError.of("process_group", group, allowed)
        # Its collectives must not mingle with those of the model.
        own = dist.new_group(
            None if group is None else dist.get_process_group_ranks(group),
            timeout=None if timeout is None else timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=group is not None,
        )
        self._wires = TorchCommunicator(own)
        self._coder = BucketCoder(self._new_feedback(), settings.seed, self._wires.rank, key)
        self._worker = ThreadPoolExecutor(1, "gcodec-ddp")
        self._room: dict[str, int] = {}  # by the first parameter of a bucket
        self._agreed = False
        self._is_open = False  # whether some buckets of a step are done, but not yet its last
        self._is_finite = True  # whether those are
        self._failure: Exception | None = None

    def residual(self, name: str) -> torch.Tensor:
        """Return a copy of what is still unsent of a parameter; see `gcodec.Feedback.residual`.

        Not while a backward pass is under way.
        """
        if self._coder.feedback is None:
            raise ParameterError("feedback=False: nothing is kept")
        return torch.from_numpy(host(self._coder.feedback.residual(name)).copy())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return this rank's residuals and counts, copied; each rank saves its own.

        They are those of after the last step that has ended, also while a step is under way.

        Returns
        -------
        dict
            ``"iteration"``, ``"rank"``, ``"size"``: int64 scalars; and what
            `gcodec.Feedback.state_dict` has, as tensors.
        """
        # In the thread, and so between two buckets.
        return self._worker.submit(self._state_dict).result()

    def _state_dict(self) -> dict[str, torch.Tensor]:
        numbers = {
            "iteration": self.iteration,
            "rank": self._wires.rank,
            "size": self._wires.size,
        }
        state = {key: torch.tensor(number) for key, number in numbers.items()}
        kept = self._coder.state_dict()
        return state | {key: torch.from_numpy(array) for key, array in kept.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same rank.

        Raises
        ------
        ParameterError
            If it is not such a dict, or of another rank or number of ranks.
        """
        own = _numbers_of(state)
        for key, here in (("rank", self._wires.rank), ("size", self._wires.size)):
            if own[key] != here:
                raise ParameterError.of(f"state[{key!r}]", own[key], f"{here}: each has its own")
        rest = {key: value for key, value in state.items() if key not in own}
        self._worker.submit(self._coder.load_state_dict, rest).result()
        self.iteration, self._is_open, self._is_finite = own["iteration"], False, True

    def _new_feedback(self) -> Feedback | None:
        s = self.settings
        if not s.feedback:
            return None
        return Feedback(s.policy, decay=s.decay, seed=s.seed, rank=self._wires.rank)

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._check_alive()
        if not self._agreed:
            self._agree()
            self._agreed = True
        names = self._names.of(bucket.parameters())
        flat, is_last = bucket.buffer(), bucket.is_last()
        is_early = self.iteration < self.settings.start_iter
        if is_early:
            self.iteration += is_last
            return self._start_plain(flat).then(lambda done: done.value()[0])
        plain = None if flat.layout is torch.strided else self._start_plain(flat)
        ready = None
        if flat.is_cuda:
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(flat.device))
        devices = [flat.device] if flat.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        gradients = bucket.gradients() if plain is None else []
        task = _Bucket(flat, gradients, names, is_last, plain, ready)
        self._worker.submit(self._exchange, task, bucket.index() == 0, future)
        # DDP sees an error only if a callback raises it, as this does.
        return future.then(operator.methodcaller("value"))

    def _start_plain(self, flat: torch.Tensor) -> torch.futures.Future[Any]:
        flat.div_(self._wires.size)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        future: torch.futures.Future[Any] = work.get_future()
        return future

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise GcodecError(f"the exchange failed before: {self._failure}") from self._failure

    def _agree(self) -> None:
        """Compare the settings of all ranks, and where they are."""
        own = self.settings.to_dict() | {"iteration": self.iteration}
        texts = self._wires.all_gather(json.dumps(own).encode())
        found = [json.loads(text) for text in texts]
        for rank, other in enumerate(found):
            for key in found[0]:
                if other[key] != found[0][key]:
                    raise ParameterError(
                        f"ddp_hook: the ranks differ: {key}={found[0][key]!r} on rank 0, "
                        f"{other[key]!r} on rank {rank}"
                    )

    def _exchange(
        self, task: _Bucket, is_first: bool, future: torch.futures.Future[torch.Tensor]
    ) -> None:
        """Do a bucket; in the thread."""
        try:
            self._check_alive()
            if is_first and self._is_open:  # the backward pass before this one broke off
                self._end_step(counts=False)
            if task.ready is None:
                future.set_result(self._done(task))
                return
            with torch.cuda.stream(torch.cuda.Stream(task.flat.device)):
                task.ready.wait()
                future.set_result(self._done(task))
        except Exception as error:
            failure = GcodecError(f"ddp_hook: step {self.iteration}: {error}")
            self._failure = self._failure or failure
            try:
                self._end_step(counts=False)
            finally:
                future.set_exception(failure)

    def _done(self, task: _Bucket) -> torch.Tensor:
        """Average a bucket; end the step with the last one.

        Means have the same bits on every rank: so all ranks find the same steps to hold NaN or
        Inf, without a word more between them.
        """
        self._is_open = True
        if task.plain is None:
            self._average(task.flat, task.gradients, task.names, self.iteration)
            mean = task.flat
        else:
            mean = task.plain.wait()[0]
        self._is_finite = self._is_finite and _all_finite(mean)
        if task.is_last:
            self._end_step(counts=self._is_finite)
        return mean

    def _end_step(self, *, counts: bool) -> None:
        """Keep what a step has changed, or take it back: loss scalers skip such a step."""
        if counts:
            self._coder.commit()
            self.iteration += 1
        else:
            self._coder.rollback()
        self._is_open, self._is_finite = False, True

    def _average(
        self,
        flat: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        names: Sequence[str],
        iteration: int,
    ) -> None:
        began = time.perf_counter()
        codecs = [
            self.settings.codec(name, tuple(gradient.shape))
            for gradient, name in zip(gradients, names, strict=True)
        ]
        there = _works_there(flat) and all(codec is None or codec.on_device for codec in codecs)
        wide = flat.to(flat.device if there else "cpu", torch.float32)  # itself, if it is that
        with inspect(wide, "bucket").stream():
            start, pairs, parts = flat.storage_offset() - wide.storage_offset(), [], []
            for gradient, name, codec in zip(gradients, names, codecs, strict=True):
                at = gradient.storage_offset() - start
                place = wide.as_strided(gradient.shape, gradient.stride(), at)
                values = place.contiguous() if there else place  # itself, if it is that
                resident = inspect(values, name).resident if there else None
                parts.append(Part(name, values.numpy() if resident is None else resident, codec))
                pairs.append((place, values))
            message = self._coder.encode(parts, iteration)
            encoded = time.perf_counter()
            messages = self._wires.all_gather(message, self._room.get(names[0], 0))
            gathered = time.perf_counter()
            self._coder.average(parts, messages)
        sizes = np.array([len(other) for other in messages])
        self._room[names[0]] = int(sizes.max() * 9 // 8) + _ROOM
        self.sent_nbytes += len(message)
        self.received_nbytes += int(sizes.sum()) - len(message)
        for place, values in pairs:
            if values is not place:
                place.copy_(values)
        if wide is not flat:
            flat.copy_(wide)
        self.encode_seconds += encoded - began
        self.decode_seconds += time.perf_counter() - gathered


def _numbers_of(state: Any) -> dict[str, int]:
    """Return the numbers of a `DdpState.state_dict`, or raise `ParameterError`."""
    allowed = "a DdpState's state_dict"
    if not isinstance(state, Mapping):
        raise ParameterError.of("state", state, allowed)
    if any(key not in state for key in _OWN):
        raise ParameterError.of("state", sorted(map(str, state))[:3], allowed)
    try:
        return {key: operator.index(state[key]) for key in _OWN}
    except TypeError:
        given = {key: state[key] for key in _OWN}
        raise ParameterError.of("state", given, f"{allowed}, with integers") from None


def _all_finite(values: torch.Tensor) -> bool:
    """Whether a tensor, maybe a sparse one, holds neither NaN nor Inf."""
    if values.layout is not torch.strided:
        values = values.coalesce().values()
    if values.dtype == torch.float32 and not values.is_cuda and values.is_contiguous():
        return all_finite(values.numpy().reshape(-1))
    return bool(torch.isfinite(values).all())


def _works_there(flat: torch.Tensor) -> bool:
    """Whether kernels can work where a bucket lies; else it is copied to the host."""
    return bool(flat.is_cuda) and has_cupy()


def _hook(state: DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket; what DDP calls."""
    return state._reduce(bucket)


_hook.__annotations__ = get_type_hints(_hook)  # DDP compares classes, not their names
