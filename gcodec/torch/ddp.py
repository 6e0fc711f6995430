"""Communication hook of DistributedDataParallel: compressed gradients replace the all-reduce.

The callback of a future must not start a collective, because each rank runs the callbacks of
several buckets in another order. The hook therefore hands each bucket to one thread with its own
process group. The thread encodes, gathers, decodes in the order of ranks, and completes the
future.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, get_type_hints

import torch
import torch.distributed as dist

from gcodec.advisor.links import break_even
from gcodec.arrays.source import inspect
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import GcodecError, ParameterError
from gcodec.feedback import Feedback
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.policy import Policy
from gcodec.runtime.device import has_cupy, host
from gcodec.torch.agreement import check_agreement
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.messages import BucketCoder, Key, Part
from gcodec.torch.selection import lossy_codec, unmatched_globs
from gcodec.wire.kinds import check_between, check_flag, check_integer


def joined_policy(policy: Any, codec: str | Mapping[str, Any] | Codec | Policy) -> Policy:
    """Return the rules of `policy`, followed by those of `codec`, as one policy.

    Parameters
    ----------
    policy : Policy or its source, or None
    codec : str, mapping, Codec or Policy
    """
    first = policy if policy is None or isinstance(policy, Policy) else Policy(policy)
    second = codec if isinstance(codec, Policy) else Policy([{"codec": parse(codec)}])
    rules = (*(first.rules if first else ()), *second.rules)
    return Policy([rule.to_dict() for rule in rules])


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

    def __post_init__(self) -> None:
        globs = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
            raise ParameterError.of("exclude", self.exclude, "a glob or a sequence of globs")
        if not self.named:
            if any(rule.names not in ((), ("*",)) for rule in self.policy.rules):
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
        object.__setattr__(self, "exclude", tuple(globs))
        object.__setattr__(self, "decay", checked.decay)
        object.__setattr__(self, "seed", checked.seed)

    def codec(self, name: str, shape: tuple[int, ...]) -> Codec | None:
        """Return the codec of a parameter's gradient; None if the gradient is sent dense."""
        is_small = len(shape) < 2 or math.prod(shape) < max(self.min_numel, 1)
        if is_small or any(fnmatch.fnmatchcase(name, glob) for glob in self.exclude):
            return None
        return lossy_codec(self.policy, name, shape)

    @property
    def globs(self) -> list[str]:
        """Globs of `exclude` and of the rules of `policy`."""
        return [*self.exclude, *(glob for rule in self.policy.rules for glob in rule.names)]

    def to_dict(self) -> dict[str, object]:
        """Return all settings as JSON types; equal settings give equal dicts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"policy": self.policy.to_dict()["rules"]}


class _Totals(NamedTuple):
    """Sums over compressed steps; see the attributes of `DdpState` with these names."""

    gradient_nbytes: int = 0
    sent_nbytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0


_SPARE_NBYTES = 64  # head of a message: 9/8 of the last longest message and these bytes
_COUNTERS = ("iteration", "rank", "size")  # keys of a state_dict that do not come from `Feedback`


class _Bucket(NamedTuple):
    """Task of the thread for one bucket.

    Attributes
    ----------
    flat : Tensor
        All values of the bucket.
    gradients : sequence of Tensor
        Views of `flat`.
    names : sequence of str
        Names of the parameters.
    is_first, is_last : bool
        Whether the bucket is the first or the last one of its step.
    all_reduce : Future or None
        Future of an all-reduce that is under way, for a bucket that is not compressed.
    ready : Event or None
        CUDA event after which the bucket contains its values.
    """

    flat: torch.Tensor
    gradients: Sequence[torch.Tensor]
    names: Sequence[str]
    is_first: bool
    is_last: bool
    all_reduce: torch.futures.Future[Any] | None
    ready: torch.cuda.Event | None


def ddp_hook(
    codec: str | Mapping[str, Any] | Codec | Policy,
    *,
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None,
    feedback: bool = True,
    decay: float = 1.0,
    start_iter: int = 2,
    seed: int = 0,
    policy: Any = None,
    exclude: str | Sequence[str] = (),
    min_numel: int = 1024,
    group_below: int = 0,
    process_group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
    key: bytes | None = None,
) -> tuple[DdpState, Callable[[DdpState, dist.GradBucket], torch.futures.Future[torch.Tensor]]]:
    """Make the arguments of `DistributedDataParallel.register_comm_hook`.

    The hook sends compressed gradients by an all-gather and averages them in float32 in the order
    of ranks, so all ranks get the same bits. Small tensors, and tensors with fewer than two
    dimensions, travel uncompressed in the same messages. All ranks must call this function with
    the same arguments; the first step compares them.

    Frameworks that start torch.distributed themselves take the hook before. The first step then
    reads rank and world size, and makes the hook's own process group.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        See `gcodec.parse` and `gcodec.Policy`. A tensor whose codec is ``raw`` is sent dense.
    model : Module or iterable of (name, parameter), optional
        Source of the parameter names for `policy`, `exclude` and checkpoints; a leading
        ``module.`` is removed. Default: parameters are numbered in the order in which their
        gradients first arrive.
    feedback : bool
        Whether to add the unsent remainder of a gradient to the next step; see
        `gcodec.Feedback`.
    decay : float
        Factor of the remainder; see `gcodec.Feedback`.
    start_iter : int
        Number of steps with a plain all-reduce before the first compressed step.
    seed : int
        Seed of the run. The seed of each message derives from it, the step, rank and name.
    policy : Policy or its source, optional
        Rules that take precedence over `codec`.
    exclude : str or sequence of str
        Glob or globs; parameters whose names match are sent dense.
    min_numel : int
        Tensors with fewer elements are sent dense.
    group_below : int
        With feedback, compressed tensors with fewer elements and the same codec share a frame, and
        thus its scale and tables; see `gcodec.Feedback.compress_many`. This saves time where a
        model has many small matrices.
    process_group : ProcessGroup, optional
        Process group of the model. Default: the group of all processes.
    timeout : float, optional
        Seconds after which an exchange with an unresponsive rank fails. Default: the timeout of
        torch.distributed.
    key : bytes, optional
        Secret of 1 to 64 bytes, equal on all ranks. Messages then carry tags that only this key
        can make, and a rank that receives any other message fails. No attribute of `state`
        shows the key.

    Returns
    -------
    state : DdpState
    hook : callable

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Warns
    -----
    UserWarning
        If a glob of `policy` or `exclude` matches no parameter of `model`.

    Examples
    --------
    Under ``torchrun``, ``dist.init_process_group("gloo")`` makes the group.

    >>> import torch, torch.distributed as dist
    >>> import gcodec.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 32))
    >>> state, hook = gcodec.torch.ddp_hook("topk:ratio=0.01", model=model, start_iter=0)
    >>> model.register_comm_hook(state, hook)
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> model.module.weight.grad.count_nonzero().item()
    20
    >>> dist.destroy_process_group()
    """
    secret = Key(key)
    settings = Settings(
        policy=joined_policy(policy, codec),
        feedback=feedback,
        decay=decay,
        start_iter=start_iter,
        seed=seed,
        exclude=exclude,
        min_numel=min_numel,
        group_below=group_below,
        named=model is not None,
        keyed=key is not None,
    )
    if timeout is not None:
        check_between("timeout", timeout, 1e-3, 1e9, "seconds, from 0.001 to 1e9")
    names = ParameterNames(model)
    for glob in names.unmatched(settings.globs):
        warnings.warn(f"ddp_hook: no parameter of the model matches {glob!r}", stacklevel=2)
    return DdpState(settings, names, process_group, timeout, secret), _hook


class DdpState:
    """State of the hook between steps: residuals by parameter name, and counters.

    Attributes
    ----------
    settings : Settings
    iteration : int
        Number of steps so far. Of the compressed steps only the valid ones count; see
        ``docs/frameworks.md``.
    sent_nbytes, received_nbytes : int
        Number of message bytes in all compressed steps so far.
    gradient_nbytes : int
        Number of bytes of the gradients in the same steps.
    encode_seconds, decode_seconds : float
        Wall time spent on encoding, and on decoding and averaging the messages of all ranks.
        Other work of the processor during that time is included.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import gcodec.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> state, hook = gcodec.torch.ddp_hook("sign")
    >>> state.iteration, state.sent_nbytes
    (0, 0)
    >>> state.load_state_dict(state.state_dict())  # as from a checkpoint
    >>> dist.destroy_process_group()
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
        self.sent_nbytes = self.received_nbytes = self.gradient_nbytes = 0
        self.encode_seconds = self.decode_seconds = 0.0
        self._names = names
        self._group = group
        if group is not None and not isinstance(group, dist.ProcessGroup):
            allowed = "a ProcessGroup of which this process is a member, or None"
            raise ParameterError.of("process_group", group, allowed)
        self._timeout, self._key = timeout, key
        self._worker = ThreadPoolExecutor(1, "gcodec-ddp")
        self._head_nbytes: dict[str, int] = {}  # by the first parameter of a bucket
        self._agreed = False
        self._is_open = False  # whether a step has begun and not ended
        self._is_finite = True  # whether all means of that step are finite so far
        self._failure: Exception | None = None
        self._first_step: _Totals | None = None
        if dist.is_initialized():  # all ranks make the group together
            _ = self._communicator

    @cached_property
    def _communicator(self) -> TorchCommunicator:
        """Communicator of a group of its own, whose messages do not mingle with the model's."""
        _check_initialized()
        return TorchCommunicator.apart(self._group, self._timeout)

    @cached_property
    def _coder(self) -> BucketCoder:
        settings, memory = self.settings, None
        rank, _ = self._rank_and_size()
        if settings.feedback:
            memory = Feedback(settings.policy, decay=settings.decay, seed=settings.seed, rank=rank)
        return BucketCoder(memory, settings.seed, rank, self._key, settings.group_below)

    def _rank_and_size(self) -> tuple[int, int]:
        _check_initialized()
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    @property
    def pays_below(self) -> float:
        """Link speed in bits per second below which the steps so far gained time.

        It follows from the measured bytes and seconds if nothing overlaps; see
        `gcodec.advisor.break_even`. The first compressed step, which compiles or loads kernels,
        counts only until the second one ends. It is NaN before the first compressed step.
        """
        if not self.gradient_nbytes:
            return math.nan
        _, size = self._rank_and_size()
        totals, first = self._totals, self._first_step or _Totals()
        if totals.gradient_nbytes > first.gradient_nbytes:
            totals = _Totals(*map(operator.sub, totals, first))
        nbytes, sent, encode, decode = totals
        return 8 * break_even(nbytes, sent, encode, decode / size, members=size)

    @property
    def _totals(self) -> _Totals:
        return _Totals(*(getattr(self, name) for name in _Totals._fields))

    def __repr__(self) -> str:
        codecs = ", ".join(dict.fromkeys(str(rule.codec) for rule in self.settings.policy.rules))
        share = f"{self.sent_nbytes:,} bytes sent for {self.gradient_nbytes:,} of gradients"
        return f"<DdpState: {codecs}, step {self.iteration}, {share}>"

    def residual(self, name: str) -> torch.Tensor:
        """Return a copy of the unsent remainder of a parameter; see `gcodec.Feedback.residual`.

        Do not call this method during a backward pass.
        """
        if self._coder.feedback is None:
            raise ParameterError("feedback=False: there are no residuals")
        return torch.from_numpy(host(self._coder.feedback.residual(name)).copy())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of this rank's residuals and counters; each rank saves its own.

        The values are those after the last completed step, even during a step.

        Returns
        -------
        dict
            ``"iteration"``, ``"rank"`` and ``"size"``, int64 scalars, and the arrays of
            `gcodec.Feedback.state_dict` as tensors.
        """

        def state_between_buckets() -> dict[str, torch.Tensor]:
            counters = zip(_COUNTERS, (self.iteration, *self._rank_and_size()), strict=True)
            state = {key: torch.tensor(number) for key, number in counters}
            arrays = self._coder.state_dict()
            return state | {key: torch.from_numpy(array) for key, array in arrays.items()}

        return self._worker.submit(state_between_buckets).result()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned on the same rank.

        Raises
        ------
        ParameterError
            If `state` is not such a dict, or belongs to another rank or number of ranks.
        """
        counters = _counters_of(state)
        for key, expected in zip(("rank", "size"), self._rank_and_size(), strict=True):
            if counters[key] != expected:
                allowed = f"{expected}, because each rank has its own state"
                raise ParameterError.of(f"state[{key!r}]", counters[key], allowed)
        arrays = {key: value for key, value in state.items() if key not in counters}
        self._worker.submit(self._coder.load_state_dict, arrays).result()
        self.iteration, self._is_open, self._is_finite = counters["iteration"], False, True

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._check_alive()
        if not self._agreed:
            values = self.settings.to_dict() | {"iteration": self.iteration}
            check_agreement(self._communicator, "ddp_hook", values)
            self._agreed = True
        names = self._names.of(bucket.parameters())
        flat = bucket.buffer()
        if self.iteration < self.settings.start_iter:
            self.iteration += bucket.is_last()
            return self._start_all_reduce(flat).then(lambda done: done.value()[0])
        is_dense = flat.layout is torch.strided
        all_reduce = None if is_dense else self._start_all_reduce(flat)
        ready = None
        if flat.is_cuda:
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(flat.device))
        task = _Bucket(
            flat,
            bucket.gradients() if is_dense else [],
            names,
            bucket.index() == 0,
            bucket.is_last(),
            all_reduce,
            ready,
        )
        devices = [flat.device] if flat.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._worker.submit(self._exchange, task, future)
        # DDP notices an error only if a callback raises it, as this callback does.
        return future.then(operator.methodcaller("value"))

    def _start_all_reduce(self, flat: torch.Tensor) -> torch.futures.Future[Any]:
        flat.div_(self._communicator.size)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        future: torch.futures.Future[Any] = work.get_future()
        return future

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise GcodecError(f"the exchange failed before: {self._failure}") from self._failure

    def _exchange(self, task: _Bucket, future: torch.futures.Future[torch.Tensor]) -> None:
        """Process one bucket in the thread, and complete its future."""
        try:
            self._check_alive()
            if task.is_first and self._is_open:  # the preceding backward pass was interrupted
                self._end_step(counts=False)
            if task.ready is None:
                future.set_result(self._mean(task))
                return
            with torch.cuda.stream(torch.cuda.Stream(task.flat.device)):
                task.ready.wait()
                future.set_result(self._mean(task))
        except Exception as error:
            failure = GcodecError(f"ddp_hook: step {self.iteration}: {error}")
            self._failure = self._failure or failure
            try:
                self._end_step(counts=False)
            finally:
                future.set_exception(failure)

    def _mean(self, task: _Bucket) -> torch.Tensor:
        """Return the mean of a bucket over all ranks; end the step after its last bucket.

        The mean has the same bits on every rank. All ranks therefore find NaN or Inf in the same
        steps without further communication.
        """
        self._is_open = True
        if task.all_reduce is None:
            self._average(task.flat, task.gradients, task.names, self.iteration)
            mean = task.flat
        else:
            mean = task.all_reduce.wait()[0]
        self._is_finite = self._is_finite and _all_finite(mean)
        if task.is_last:
            self._end_step(counts=self._is_finite)
        return mean

    def _end_step(self, *, counts: bool) -> None:
        """Keep the changes of a step, or undo them, because loss scalers skip such a step."""
        if counts:
            self._coder.commit()
            self.iteration += 1
        else:
            self._coder.rollback()
        if self._first_step is None:
            self._first_step = self._totals
        self._is_open, self._is_finite = False, True

    def _average(
        self,
        flat: torch.Tensor,
        gradients: Sequence[torch.Tensor],
        names: Sequence[str],
        iteration: int,
    ) -> None:
        """Replace the gradients of a bucket by their means over all ranks."""
        started = time.perf_counter()
        codecs = [
            self.settings.codec(name, tuple(gradient.shape))
            for gradient, name in zip(gradients, names, strict=True)
        ]
        in_place = _works_there(flat) and all(codec is None or codec.on_device for codec in codecs)
        # `wide` is `flat` itself if that is float32 and need not move to the host.
        wide = flat.to(flat.device if in_place else "cpu", torch.float32)
        with inspect(wide, "bucket").stream():
            offset, copies, parts = flat.storage_offset() - wide.storage_offset(), [], []
            for gradient, name, codec in zip(gradients, names, codecs, strict=True):
                start = gradient.storage_offset() - offset
                view = wide.as_strided(gradient.shape, gradient.stride(), start)
                values = view.contiguous() if in_place else view
                if values is not view:
                    copies.append((view, values))
                resident = inspect(values, name).resident if in_place else None
                parts.append(Part(name, values.numpy() if resident is None else resident, codec))
            message = self._coder.encode(parts, iteration)
            encoded = time.perf_counter()
            messages = self._communicator.all_gather(message, self._head_nbytes.get(names[0], 0))
            gathered = time.perf_counter()
            self._coder.average(parts, messages)
        lengths = [len(received) for received in messages]
        self._head_nbytes[names[0]] = max(lengths) * 9 // 8 + _SPARE_NBYTES
        self.sent_nbytes += len(message)
        self.received_nbytes += sum(lengths) - len(message)
        self.gradient_nbytes += flat.numel() * flat.element_size()
        for view, values in copies:
            view.copy_(values)
        if wide is not flat:
            flat.copy_(wide)
        self.encode_seconds += encoded - started
        self.decode_seconds += time.perf_counter() - gathered


def _check_initialized() -> None:
    if not dist.is_initialized():
        raise ParameterError("ddp_hook: call torch.distributed.init_process_group first")


def _counters_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a `DdpState.state_dict`, or raise `ParameterError`."""
    allowed = "a DdpState's state_dict"
    if not isinstance(state, Mapping):
        raise ParameterError.of("state", state, allowed)
    if any(key not in state for key in _COUNTERS):
        raise ParameterError.of("state", sorted(map(str, state))[:3], allowed)
    values = {key: state[key] for key in _COUNTERS}
    try:
        return {key: operator.index(value) for key, value in values.items()}
    except TypeError:
        raise ParameterError.of("state", values, f"{allowed}, with integers") from None


def _all_finite(values: torch.Tensor) -> bool:
    """Tell whether a tensor, possibly a sparse one, contains neither NaN nor Inf."""
    if values.layout is not torch.strided:
        values = values.coalesce().values()
    if values.dtype == torch.float32 and not values.is_cuda and values.is_contiguous():
        return all_finite(values.numpy().reshape(-1))
    return bool(torch.isfinite(values).all())


def _works_there(flat: torch.Tensor) -> bool:
    """Tell whether kernels can run on the device of a bucket; if not, they run on the host."""
    return bool(flat.is_cuda) and has_cupy()


def _hook(state: DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket; DDP calls this function."""
    return state._reduce(bucket)


_hook.__annotations__ = get_type_hints(_hook)  # DDP compares classes, not their names


class ParameterNames:
    """Names of parameters by identity: DDP rebuilds its buckets, but keeps the parameters.

    Parameters
    ----------
    model : Module or iterable of (name, parameter) or None

    Raises
    ------
    ParameterError
        If `model` is of another type, or two parameters have the same name and would therefore
        share a residual.
    """

    def __init__(self, model: Any) -> None:
        self._has_model = model is not None
        self._names: dict[int, str] = {}  # by identity, which `_parameters` keeps valid
        self._parameters: dict[str, torch.Tensor] = {}
        for name, parameter in [] if model is None else _named_parameters(model):
            self._add(parameter, name)

    def of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Return the names of parameters. Without a model, new parameters are numbered."""
        for parameter in parameters:
            if id(parameter) not in self._names:
                if self._has_model:
                    shape = tuple(parameter.shape)
                    raise ParameterError(f"model: it lacks a parameter of shape {shape}")
                self._add(parameter, str(len(self._parameters)))
        return [self._names[id(parameter)] for parameter in parameters]

    def unmatched(self, globs: Iterable[str]) -> list[str]:
        """Return globs that match no parameter; none of them without a model."""
        if not self._has_model:
            return []
        return unmatched_globs(globs, self._parameters)

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        if self._parameters.setdefault(name, parameter) is not parameter:
            raise ParameterError(f"model: two parameters have the name {name!r}")
        self._names[id(parameter)] = name


def _named_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names, without a leading ``module.``, and parameters."""
    try:
        pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else iter(model)
        for name, parameter in pairs:
            if not isinstance(name, str) or not isinstance(parameter, torch.Tensor):
                raise TypeError
            yield name.removeprefix("module."), parameter
    except (TypeError, ValueError):
        allowed = "a Module, or pairs of a name and a parameter"
        raise ParameterError.of("model", model, allowed) from None
