"""Communication hook of DistributedDataParallel: compressed gradients replace the all-reduce.

The callback of a future must not start a collective, because each rank runs the callbacks of
several buckets in another order. The hook therefore hands each bucket to one thread with its own
process groups. The thread encodes, exchanges messages, decodes in the order of ranks, and
completes the future.
"""

from __future__ import annotations

import math
import operator
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from gcodec.advisor.links import break_even
from gcodec.arrays.source import inspect
from gcodec.codec import Codec, CodecLike
from gcodec.errors import FormatError, GcodecError, ParameterError
from gcodec.feedback import Feedback
from gcodec.policy import Policy, PrefixedPolicy
from gcodec.runtime.arithmetic import standardize
from gcodec.runtime.device import host
from gcodec.torch.agreement import Refused, check_agreement, report_failure, roll_call
from gcodec.torch.buckets import Bucket, cupy_on, gradients_in, has_kernels_for, is_finite
from gcodec.torch.choice import Choice, announce, choose_collective, measure_coding
from gcodec.torch.communicator import TorchCommunicator, check_group, check_initialized
from gcodec.torch.exchange import (
    Exchange,
    Gathered,
    InsideFirst,
    Traffic,
    TwoPhase,
)
from gcodec.torch.factors import Factors, as_factors
from gcodec.torch.messages import BucketCoder, Key, Part, check_states
from gcodec.torch.names import ParameterNames
from gcodec.torch.nodes import Nodes, check_inside, find_nodes, ranks_inside
from gcodec.torch.saved_state import (
    COUNTERS,
    PLACE,
    SERVER,
    Place,
    SavedState,
    check_state,
    parse_state,
    redistribute,
    warn_of_lost_residuals,
    warn_of_missing_residuals,
)
from gcodec.torch.selection import joined_policy, warn_of_unmatched
from gcodec.torch.settings import Collective, Settings
from gcodec.torch.tensors import untraced
from gcodec.training.collectives import share_of
from gcodec.training.state import check_same_rank
from gcodec.wire.kinds import check_between


class _Totals(NamedTuple):
    """Sums over compressed steps; see the attributes of `DdpState` with these names."""

    gradient_nbytes: int = 0
    sent_nbytes: int = 0
    received_nbytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0


_ALL_STATES = "load_state_dicts takes the states of all ranks"
_ROLL_CALL_SECONDS = 5.0  # in which the ranks of a failed exchange learn who else has failed


def ddp_hook(
    codec: CodecLike | Policy = "lowrank",
    *,
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]] | None = None,
    feedback: bool = True,
    decay: float = 1.0,
    start_iter: int = 2,
    seed: int = 0,
    policy: object = None,
    exclude: str | Sequence[str] = (),
    min_numel: int = 1024,
    group_below: int = 0,
    process_group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
    key: bytes | None = None,
    collective: Collective = "gather",
    inside: int | dist.ProcessGroup | DeviceMesh | None = None,
    second: CodecLike | Policy | None = None,
) -> tuple[DdpState, Callable[[DdpState, dist.GradBucket], torch.futures.Future[torch.Tensor]]]:
    """Make the arguments of `DistributedDataParallel.register_comm_hook`.

    The hook exchanges compressed gradients and averages them in float32 in the order of ranks, so
    all ranks get the same bits. Small tensors, and tensors with fewer than two dimensions, travel
    uncompressed ("dense") in the same messages. All ranks must call this function with the same
    arguments; the first step compares them.

    The hook may be made before torch.distributed is initialized, as some frameworks require. Its
    first step then reads rank and world size, and makes the hook's own process group.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        Codec of gradients; see `gcodec.parse` and `gcodec.Policy`. A tensor whose codec is ``raw``
        is sent dense. With feedback, the default takes the fewest bits for gradients of matrices.
        It encodes matrices without a low rank as ``ecsq`` does.
    model : Module, mapping of names to parameters, or iterable of (name, parameter), optional
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
        model has many small matrices. Only tensors of one bucket share a frame.
    process_group : ProcessGroup, optional
        Process group of the model. Default: that of `model` if it is a `DistributedDataParallel`,
        else the group of all processes.
    timeout : float, optional
        Seconds after which an exchange with an unresponsive rank fails. Default: the timeout of
        torch.distributed.
    key : bytes, optional
        Secret of 1 to 64 bytes, equal on all ranks. Messages then carry tags that only this key
        can make, and a rank that receives any other message fails. No attribute of `state`
        shows the key.
    collective : {"gather", "two-phase", "hierarchical", "auto", "factors"}
        Exchange of messages:

        - "gather": every rank sends its message to all ranks.
        - "two-phase": each rank averages one share of every tensor, and sends the mean to all
          ranks as a second message, with separate feedback.
        - "hierarchical": the ranks of a node first average without compression. Then the ranks
          with the same share in all nodes exchange messages; with three nodes or more, in two
          phases.
        - "auto": the first compressed step measures coding and links, asks `gcodec.advisor`, and
          logs the choice.
        - "factors", for ``powersgd``: the ranks average both factors of each matrix, as
          `gcodec.training.PowerSGD` does. The number of ranks does not change the bytes of a rank.
    inside : int, ProcessGroup or DeviceMesh, optional
        Ranks of a node for "hierarchical" and "auto": their number, if they are consecutive;
        their group; or a mesh whose last dimension lies inside of nodes. Default: the number
        that torchrun puts into ``LOCAL_WORLD_SIZE``.
    second : str, mapping, Codec or Policy, optional
        Codec of the means in two phases. Default: `policy` and `codec`.

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
        collective=collective,
        second=None if second is None else joined_policy(None, second, "second"),
        inside=inside if inside is None or isinstance(inside, int) else type(inside).__name__,
    )
    check_inside(inside)
    if timeout is not None:
        check_between("timeout", timeout, 1e-3, 1e9, "seconds, from 0.001 to 1e9")
    names = ParameterNames(model)
    wrapper = getattr(model, "_orig_mod", model)  # which torch.compile has received
    if process_group is None and isinstance(wrapper, DistributedDataParallel):
        is_whole = wrapper.process_group is dist.group.WORLD
        process_group = None if is_whole else wrapper.process_group
    if model is not None:
        warn_of_unmatched("ddp_hook", settings.globs, names.shapes())
    return DdpState(settings, names, process_group, timeout, secret, inside), _hook


class DdpState:
    """State of the hook between steps: residuals by parameter name, and counters.

    Attributes
    ----------
    settings : Settings
        Arguments of `ddp_hook` that all ranks must share.
    iteration : int
        Number of steps so far. Compressed steps count only if they are valid; see
        ``docs/ddp.md``.
    sent_nbytes, received_nbytes : int
        Number of bytes of the messages that this rank wrote, each counted once, and that it
        received, in all compressed steps so far. Bytes inside of nodes do not count.
    inside_nbytes : int
        Number of uncompressed bytes that this rank sent inside of its node.
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
        inside: int | dist.ProcessGroup | DeviceMesh | None,
    ) -> None:
        self._key = key  # first, so that it refuses a pickle before anything else fails
        self.settings = settings
        self.iteration = self.gradient_nbytes = 0
        self._traffic = Traffic()
        self._names = names
        self._group = group
        check_group("process_group", group)
        self._timeout, self._inside = timeout, inside
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._worker = ThreadPoolExecutor(1, "gcodec-ddp", initializer=standardize)
        self._process_id = os.getpid()
        self._choice: Choice | None = None  # of the collective, by the advisor or a state
        self._restored: Sequence[SavedState] = ()  # to be used after the choice
        self._agreed = False
        self._loaded: int | None = None  # step of a state that the ranks have not compared yet
        self._is_open = False  # whether a step has begun and not ended
        self._is_finite = True  # whether all means of that step are finite so far
        self._failure: Exception | None = None
        self._first_step: _Totals | None = None
        if dist.is_initialized():  # all ranks make the groups together
            _ = self._communicator, self._nodes

    @cached_property
    def _communicator(self) -> TorchCommunicator:
        """Communicator of a group of its own, whose messages do not mingle with the model's."""
        check_initialized("ddp_hook")
        return TorchCommunicator.apart(self._group, self._timeout)

    @cached_property
    def _nodes(self) -> Nodes | None:
        """Place of this rank in a cluster, and further groups, if the collective needs them."""
        if self.settings.collective not in ("hierarchical", "auto"):
            return None
        # A rank with another collective does not call `find_nodes`.
        check_agreement(self._communicator, "ddp_hook", self.settings.to_dict())
        own = ranks_inside(self._communicator, self._inside)
        if own is None and self.settings.collective == "hierarchical":
            raise ParameterError("inside: must be given, because LOCAL_WORLD_SIZE is not set")
        backend = "nccl" if dist.get_backend(self._group) == "nccl" else "gloo"
        return find_nodes(self._communicator, own or [dist.get_rank()], self._timeout, backend)

    @property
    def _place(self) -> Place | None:
        """Place of this rank in the exchange; None until the advisor has chosen a collective."""
        choice, collective = self._choice, self.settings.collective
        if collective == "auto":
            return choice and self._place_of(
                inside_first=choice.inside_first, two_phase=choice.two_phase
            )
        if self._nodes is not None:
            # For two nodes, gathering is as short.
            return self._place_of(inside_first=True, two_phase=self._nodes.between.size > 2)
        return self._place_of(inside_first=False, two_phase=collective == "two-phase")

    def _place_of(self, *, inside_first: bool, two_phase: bool) -> Place:
        rank, size = self._rank_and_size()
        if not inside_first:
            return Place(0, 1, rank, size, int(two_phase))
        assert self._nodes is not None
        inside, between = self._nodes
        return Place(inside.rank, inside.size, between.rank, between.size, int(two_phase))

    @cached_property
    def _coder(self) -> BucketCoder:
        """Encoder of this rank's gradients."""
        policy, place = self.settings.policy, self._chosen_place()
        return self._coder_of(PrefixedPolicy(policy) if place.two_phase else policy)

    @cached_property
    def _server(self) -> BucketCoder:
        """Encoder of the means that this rank computes."""
        return self._coder_of(self.settings.means)

    def _coder_of(self, policy: Policy) -> BucketCoder:
        settings, memory = self.settings, None
        # Ranks of other groups may hold the same parameters, as with tensor parallelism, and must
        # round them in the same way. The exchanges count senders among all processes.
        rank, sender = self._communicator.rank, dist.get_rank()
        if settings.feedback:
            memory = Feedback(policy, decay=settings.decay, seed=settings.seed, rank=rank)
        below = settings.group_below
        return BucketCoder(memory, settings.seed, rank, self._key, below, sender)

    @cached_property
    def _dense(self) -> Exchange:
        """Exchange of buckets that are not compressed, until the advisor has chosen another."""
        coder = BucketCoder(None, self.settings.seed, dist.get_rank(), self._key)
        return Gathered(self._communicator, coder)

    @cached_property
    def _exchange(self) -> Exchange:
        if self.settings.collective == "factors":
            return self._factors
        place = self._chosen_place()
        nodes = self._nodes if place.inside > 1 else None
        group = self._communicator if nodes is None else nodes.between
        policy, second = self.settings.policy, self.settings.means
        exchange: Exchange = Gathered(group, self._coder)
        if place.two_phase:
            exchange = TwoPhase(group, self._coder, self._server, policy, second)
        return exchange if nodes is None else InsideFirst(nodes.inside, exchange, policy)

    def _chosen_place(self) -> Place:
        place = self._place
        if place is None:
            raise ParameterError("collective='auto': the first compressed step chooses one")
        return place

    @cached_property
    def _factors(self) -> Factors:
        """Exchange and state of PowerSGD."""
        return Factors(self._communicator, self.settings.seed)

    def _coders(self) -> Sequence[BucketCoder | Factors]:
        """Return the encoders of both phases, as far as there are any."""
        if self.settings.collective == "factors":
            return [self._factors]
        place = self._place
        if place is None:
            return []
        return [self._coder, self._server] if place.two_phase else [self._coder]

    @property
    def collective(self) -> str:
        """Collective of the hook; ``"auto"`` until the first compressed step has chosen one."""
        place = self._place if dist.is_initialized() else None
        if self.settings.collective != "auto" or place is None:
            return self.settings.collective
        flat = "two-phase" if place.two_phase else "gather"
        return "hierarchical" if place.inside > 1 else flat

    @property
    def sent_nbytes(self) -> int:
        """Number of bytes of the messages that this rank wrote, each counted once."""
        return self._traffic.message_nbytes

    @property
    def received_nbytes(self) -> int:
        """Number of bytes of the messages that this rank received."""
        return self._traffic.received_nbytes

    @property
    def inside_nbytes(self) -> int:
        """Number of uncompressed bytes that this rank sent inside of its node."""
        return self._traffic.inside_nbytes

    @property
    def encode_seconds(self) -> float:
        """Wall time spent on encoding."""
        return self._traffic.encode_seconds

    @property
    def decode_seconds(self) -> float:
        """Wall time spent on decoding and averaging the messages of all ranks."""
        return self._traffic.decode_seconds

    def _rank_and_size(self) -> tuple[int, int]:
        check_initialized("ddp_hook")
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    @property
    def pays_below(self) -> float:
        """Link speed in bits per second below which the steps so far gained time.

        It follows from the measured bytes and seconds if nothing overlaps; see
        `gcodec.advisor.break_even`. The link is that of a rank or, with "hierarchical", its
        share of the link between nodes. The first compressed step, which compiles or loads
        kernels, counts only until the second one ends. It is NaN before the first compressed
        step, with "factors", and with "hierarchical" on one node, where no message is sent to
        another one.
        """
        if not self.gradient_nbytes:
            return math.nan
        totals, first = self._totals, self._first_step or _Totals()
        if totals.gradient_nbytes > first.gradient_nbytes:
            totals = _Totals(*map(operator.sub, totals, first))
        nbytes, sent, received, encode, decode = totals
        place = self._place
        if place is None or place.nodes == 1 or self.settings.collective == "factors":
            return math.nan
        members = place.nodes
        dense = nbytes / place.inside
        if not place.two_phase:
            return 8 * break_even(dense, sent, encode, decode / members, members=members)
        # Two phases take two shares of a message from each other member, and code accordingly.
        whole = received * members / (2 * (members - 1))
        encode /= 1 + 1 / members
        return 8 * break_even(dense, whole, encode, decode / 2, members, "two-phase")

    @property
    def _totals(self) -> _Totals:
        return _Totals(*(getattr(self, name) for name in _Totals._fields))

    def __deepcopy__(self, memo: object) -> DdpState:
        """Return this state: the copy of a model in DDP, such as an average, has no hook."""
        return self

    def __repr__(self) -> str:
        codecs = ", ".join(dict.fromkeys(str(rule.codec) for rule in self.settings.policy.rules))
        share = f"{self.sent_nbytes:,} bytes sent for {self.gradient_nbytes:,} of gradients"
        collective = "" if self.settings.collective == "gather" else f", {self.collective}"
        return f"<DdpState: {codecs}{collective}, step {self.iteration}, {share}>"

    def residual(self, name: str) -> torch.Tensor:
        """Return a copy of the unsent remainder of a parameter; see `gcodec.Feedback.residual`.

        Do not call this method during a backward pass.
        """
        if self.settings.collective == "factors":
            return torch.from_numpy(self._factors.residual(name).copy())
        feedback, place = self._coder.feedback, self._chosen_place()
        if feedback is None:
            raise ParameterError("feedback=False: there are no residuals")
        shape = self._names.shapes().get(name)
        if shape is None or not place.two_phase:
            return torch.from_numpy(host(feedback.residual(name)).copy())
        whole = np.zeros(shape, np.float32)
        states = feedback.state_dict()
        shares, _ = place.shares(name, whole, whole)
        sent = {f"residual:{key}": share for key, share in shares.items()}
        owed = sent.keys() & states.keys()
        if not owed:
            raise ParameterError.of("name", name, "one that was compressed before")
        for key in owed:
            sent[key][...] = states[key]
        own = share_of(whole, place.local, place.inside)
        return torch.from_numpy(own.copy())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of this rank's residuals and counters; each rank saves its own.

        The values are those after the last completed step, even during a step.

        Returns
        -------
        dict
            ``"iteration"``, ``"rank"`` and ``"size"``, int64 scalars, and the arrays of
            `gcodec.Feedback.state_dict` as tensors. Collectives other than "gather" add
            ``"place"``, five integers, and two phases the arrays of the means' feedback, with
            the prefix ``"server:"``.
        """

        def state_between_buckets() -> dict[str, torch.Tensor]:
            counters = zip(COUNTERS, (self.iteration, *self._rank_and_size()), strict=True)
            state = {key: torch.tensor(number, device="cpu") for key, number in counters}
            place = self._place
            if place is not None and (place.two_phase or place.inside > 1):
                state[PLACE] = torch.tensor(place, device="cpu")
            phases: Sequence[Mapping[str, np.ndarray]]
            phases = [coder.state_dict() for coder in self._coders()]
            if self._restored:  # the advisor has not chosen a collective yet
                flat = self._place_of(inside_first=False, two_phase=False)
                phases = redistribute(self._restored, flat, self._names.shapes())
            for prefix, arrays in zip(("", SERVER), phases, strict=False):
                state |= {prefix + key: torch.from_numpy(array) for key, array in arrays.items()}
            return state

        if os.getpid() != self._process_id:  # a forked child, which has no thread of the worker
            return state_between_buckets()
        return self._worker.submit(state_between_buckets).result()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned on the same rank.

        Raises
        ------
        ParameterError
            If `state` is not such a dict, or belongs to another model, rank, number of ranks or
            collective; see `load_state_dicts`. Nothing changes then.

        Warns
        -----
        UserWarning
            If `state` follows compressed steps, but contains no residuals, or if it contains
            residuals, but the hook has no feedback.
        """
        counters, saved = parse_state(state)
        check_same_rank(counters, *self._rank_and_size(), f"; {_ALL_STATES}")
        if not saved.is_factored:
            check_states((saved.worker, saved.server))  # before anything changes
        choice_before = self._choice
        if self.settings.collective == "auto" and (saved.worker or saved.server):
            choice = Choice(saved.place.inside > 1, bool(saved.place.two_phase), "as before")
            self._choice = self._choice or choice
        try:
            place = self._place
            if place is not None and place != saved.place and (saved.worker or saved.server):
                allowed = f"{place}, as for the collective of this hook; {_ALL_STATES}"
                raise ParameterError.of(f"state[{PLACE!r}]", saved.place, allowed)
            has_factors = self.settings.collective == "factors"
            if saved.worker and saved.is_factored != has_factors:
                allowed = f"that of a hook with{'' if has_factors else 'out'} collective='factors'"
                raise ParameterError(f"state: must be {allowed}, as this one is; {_ALL_STATES}")
            if self.settings.named:
                worker = saved.worker
                if self.settings.collective == "factors":  # their keys begin with RANK:
                    worker = {key.partition(":")[2]: x for key, x in worker.items()}
                check_state(saved._replace(worker=worker), self._names.shapes())
        except ParameterError:
            self._choice = choice_before
            raise
        if self._lacks_residuals(counters["iteration"], saved):
            warn_of_missing_residuals("ddp_hook")
        if not self.settings.feedback and (saved.worker or saved.server):
            warn_of_lost_residuals("ddp_hook")

        def load() -> None:
            self._restored = ()
            for coder, arrays in zip(self._coders(), (saved.worker, saved.server), strict=False):
                coder.load_state_dict(arrays)

        self._worker.submit(load).result()
        self._begin_at(counters["iteration"])

    def _lacks_residuals(self, iteration: int, saved: SavedState) -> bool:
        """Return whether compressed steps precede a state, but residuals are missing in it."""
        settings = self.settings
        if saved.worker or not settings.feedback or iteration <= settings.start_iter:
            return False
        shapes = self._names.trainable_shapes().items()
        return not settings.named or any(settings.codec(*item) is not None for item in shapes)

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Continue from the states of all ranks of a run with other ranks or collectives.

        Each rank takes the mean of the residuals of those ranks, so nothing unsent is lost.
        Residuals of means go to the new owners of the shares.

        Parameters
        ----------
        states : iterable of mapping
            A `state_dict` of each rank, the same on all ranks. The hook needs ``model=``.

        Raises
        ------
        ParameterError
            If the states do not belong together, or to this model.

        Warns
        -----
        UserWarning
            If states of some ranks are missing, or the hook has no feedback, because what they had
            not sent is lost.
        """
        parsed = [parse_state(state) for state in states]
        if not parsed or not self.settings.named:
            allowed = "the states of all ranks, and a hook made with model="
            raise ParameterError.of("states", len(parsed), allowed)
        first = parsed[0][0]
        for counters, _ in parsed:
            for name in ("iteration", "size"):
                if counters[name] != first[name]:
                    allowed = f"{first[name]}, as in the first state"
                    raise ParameterError.of(f"states: {name}", counters[name], allowed)
        ranks = [counters["rank"] for counters, _ in parsed]
        if max(ranks) >= first["size"]:
            allowed = f"a rank below the size {first['size']}"
            raise ParameterError.of("states: rank", max(ranks), allowed)
        missing = sorted(set(range(first["size"])) - set(ranks))
        if len(set(ranks)) != len(ranks):
            raise ParameterError.of("states: ranks", ranks, "all different")
        if missing:
            warnings.warn(
                f"ddp_hook: the states of ranks {missing} are missing; what they had not sent is "
                "lost",
                stacklevel=2,
            )
        if not self.settings.feedback and any(saved.worker or saved.server for _, saved in parsed):
            warn_of_lost_residuals("ddp_hook")
        self._worker.submit(self._restore, [saved for _, saved in parsed]).result()
        self._begin_at(first["iteration"])

    def _restore(self, states: Sequence[SavedState]) -> None:
        """Use the states of another run, or keep them until the collective is known."""
        place = self._place
        flat = self._place_of(inside_first=False, two_phase=False)
        arrays = redistribute(states, place or flat, self._names.shapes())
        self._restored = states if place is None else ()
        if self.settings.collective == "factors":
            arrays = as_factors(arrays[0]), {}
        for coder, own in zip(self._coders(), arrays, strict=False):
            coder.load_state_dict(own)

    def _begin_at(self, iteration: int) -> None:
        self.iteration, self._is_open, self._is_finite = iteration, False, True
        self._loaded = iteration if self._agreed else None

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._check_alive()
        if not self._agreed:
            values = self.settings.to_dict() | {"iteration": self.iteration}
            values["collective of the state"] = self._choice and self.collective
            check_agreement(self._communicator, "ddp_hook", values)
            _ = self._nodes
            self._agreed = True
        parameters, flat = bucket.parameters(), bucket.buffer()
        names = self._names.of(parameters)
        if self.iteration < self.settings.start_iter:
            self.iteration += bucket.is_last()
            return self._start_all_reduce(flat).then(lambda done: done.value()[0])
        # The bucket of complex parameters has two values for each element of its gradients.
        is_complex = any(parameter.is_complex() for parameter in parameters)
        is_coded = flat.layout is torch.strided and not is_complex
        all_reduce = None if is_coded else self._start_all_reduce(flat)
        ready = None
        if flat.is_cuda:
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(flat.device))
        task = Bucket(
            flat,
            gradients_in(bucket, parameters) if is_coded else [],
            names,
            bucket.index() == 0,
            bucket.is_last(),
            all_reduce,
            ready,
        )
        devices = [flat.device] if flat.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._worker.submit(self._process, task, future)
        # DDP notices an error only if a callback raises it, as this callback does.
        return future.then(operator.methodcaller("value"))

    def _start_all_reduce(self, flat: torch.Tensor) -> torch.futures.Future[Any]:
        flat.div_(self._communicator.size)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        return work.get_future()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise GcodecError(
                "the exchange failed before, so a run that goes on needs a new DDP model with a "
                f"new hook, which loads this one's state_dict: {self._failure}"
            ) from self._failure

    def _process(self, task: Bucket, future: torch.futures.Future[torch.Tensor]) -> None:
        """Process one bucket in the thread, and complete its future."""
        try:
            self._check_alive()
            if task.is_first and self._is_open:  # the preceding backward pass was interrupted
                self._end_step(counts=False)
            if task.ready is None:
                future.set_result(self._mean(task))
                return
            stream = self._stream_on(task.flat.device)
            with torch.cuda.stream(stream), cupy_on(stream, task.flat):
                task.ready.wait()
                future.set_result(self._mean(task))
        except Exception as error:
            failure = GcodecError(f"ddp_hook: step {self.iteration}: {error}")
            try:
                failure = self._failure_of(task, error)
                self._failure = self._failure or failure
                self._end_step(counts=False)
            finally:
                future.set_exception(failure)

    def _stream_on(self, device: torch.device) -> torch.cuda.Stream:
        """Return the stream of the thread; CuPy keeps the free memory of each stream apart."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _failure_of(self, task: Bucket, error: Exception) -> GcodecError:
        """Return the error of a bucket, and let ranks that wait for this one fail soon."""
        place = f"step {self.iteration}: the bucket of {task.names[0]!r}"
        if self._failure is not None:
            return GcodecError(f"ddp_hook: {place}: {error}")
        text = f"{place}: {error}"
        if not isinstance(error, Refused):  # a refusal has reached all ranks
            is_known = isinstance(error, GcodecError)
            group = self._communicator
            where = f", on rank {dist.get_rank()}" if isinstance(error, FormatError) else ""
            report_failure(group.name, f"{text}{where}" if is_known else "")
            traceback.clear_frames(error.__traceback__)  # they refer to the groups
            # While the links are measured, ranks wait in any of the groups.
            for each in [self._exchange] if self._place else [group, *(self._nodes or ())]:
                with suppress(Exception):
                    each.close()
            if not is_known:
                seconds = min(_ROLL_CALL_SECONDS, self._timeout or math.inf)
                absent, reasons = roll_call(group.name, group.ranks, seconds)
                if absent:
                    text = f"{place}: no answer from rank {', '.join(map(str, absent))}: {error}"
                elif reasons:
                    text = reasons[0]
        return GcodecError(f"ddp_hook: {text}")

    def _mean(self, task: Bucket) -> torch.Tensor:
        """Return the mean of a bucket over all ranks; end the step after its last bucket.

        The mean has the same bits on every rank. All ranks therefore find NaN or Inf in the same
        steps without further communication.
        """
        self._is_open = True
        if task.all_reduce is None:
            self._average(task)
            mean = task.flat
        else:
            mean = task.all_reduce.wait()[0]
        self._is_finite = self._is_finite and is_finite(mean)
        if task.is_last:
            self._end_step(counts=self._is_finite)
        return mean

    def _end_step(self, *, counts: bool) -> None:
        """Keep the changes of a step, or undo them, because loss scalers skip such a step."""
        for coder in self._coders():
            if counts:
                coder.commit()
            else:
                coder.rollback()
        self.iteration += counts
        if self._first_step is None:
            self._first_step = self._totals
        self._is_open, self._is_finite = False, True

    def _average(self, task: Bucket) -> None:
        """Replace the gradients of a bucket by their means over all ranks."""
        flat, traffic, place = task.flat, self._traffic, self._place
        codecs = [
            self.settings.codec(name, tuple(gradient.shape))
            for gradient, name in zip(task.gradients, task.names, strict=True)
        ]
        is_gathered = place is not None and place.inside == 1 and not place.two_phase
        on_device = self._codes_on_device(flat, codecs, is_gathered)
        # `wide` is `flat` itself if that is float32 and need not move to the host.
        with traffic.encoding():
            wide = flat.to(flat.device if on_device else "cpu", torch.float32)
        with inspect(wide, "bucket").stream():
            with traffic.encoding():
                # Shares are views of contiguous values.
                contiguous = on_device or not is_gathered
                parts, copies = task.parts(
                    codecs, wide, on_device=on_device, contiguous=contiguous
                )
            exchange = self._chosen_exchange(parts) if place is None else self._exchange
            if self._loaded is not None and exchange is not self.__dict__.get("_dense"):
                self._coder.announce(self._loaded)
                self._loaded = None
            exchange.average(parts, self.iteration, traffic)
        self.gradient_nbytes += flat.numel() * flat.element_size()
        with traffic.decoding():
            for view, values in copies:
                view.copy_(values)
            if wide is not flat:
                flat.copy_(wide)

    def _codes_on_device(
        self, flat: torch.Tensor, codecs: Sequence[Codec | None], is_gathered: bool
    ) -> bool:
        """Return whether all codecs of a bucket, and of its means, run on its device."""
        if self.settings.collective == "factors" or not has_kernels_for(flat):
            return False
        used = [codec for codec in codecs if codec is not None]
        if not is_gathered:
            used += [rule.codec for rule in self.settings.means.rules]
        return all(codec.on_device for codec in used)

    def _chosen_exchange(self, parts: Sequence[Part]) -> Exchange:
        """Choose a collective for a bucket, and for all others unless it is dense."""
        if all(part.codec is None for part in parts):
            return self._dense
        self._choice = choose_collective(
            measure_coding(parts),
            sum(map(math.prod, self._names.trainable_shapes().values())),
            self._communicator,
            self._nodes,
        )
        announce(self._communicator.rank, "ddp_hook", self._choice)
        if self._restored:
            self._restore(self._restored)
        return self._exchange


def _hook(state: DdpState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket; DDP calls this function."""
    if not isinstance(bucket, dist.GradBucket):
        raise ParameterError(
            "torch._dynamo.config.optimize_ddp: must be 'ddp_optimizer' or 'no_optimization', "
            "because ddp_hook needs buckets, which a python_reducer does not make"
        )
    return state._reduce(bucket)


_hook.__annotations__ = get_type_hints(_hook)  # DDP compares classes, not their names
_hook = untraced(_hook)
