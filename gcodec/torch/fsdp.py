"""Collectives of FSDP2: compressed gradients and parameters replace the dense shards.

FSDP2 hands over flat buffers without names. The layout of a module, which `FsdpComm.register`
derives from its sharded parameters, cuts them into one piece for each parameter and rank.

All changes of the feedback in one backward pass form a transaction. FSDP2 does not announce the
end of a pass; the pass has ended when the model computes forward again, or when a module reduces
its gradients again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gcodec.codec import CodecLike
from gcodec.errors import GcodecError, ParameterError
from gcodec.feedback import Feedback
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.policy import Policy, PrefixedPolicy
from gcodec.runtime.device import host
from gcodec.torch import selection
from gcodec.torch.agreement import Refused, check_agreement, first_reason
from gcodec.torch.communicator import TorchCommunicator, check_group, check_initialized
from gcodec.torch.exchange import Traffic, TwoPhase, average_shares, gather_shares
from gcodec.torch.fsdp_layout import (
    UNCUT,
    Layout,
    Piece,
    drop_gradients,
    managed_parameters,
    shard_shape,
    sharded_dim,
)
from gcodec.torch.messages import BucketCoder, Key, Part, check_states
from gcodec.torch.names import FLOATS, unwrapped
from gcodec.torch.saved_state import (
    check_shapes,
    saved_array,
    saved_counters,
    warn_of_lost_residuals,
    warn_of_missing_residuals,
)
from gcodec.training.collectives import share_of
from gcodec.training.state import check_same_rank
from gcodec.wire.kinds import check_flag

_TOO_OLD = "fsdp_comm needs a PyTorch whose FSDP2 takes custom collectives, such as 2.13"
_COUNTERS = ("step", "rank", "size")  # keys of a state_dict that do not come from `Feedback`


def fsdp_comm(
    codec: CodecLike | Policy | None,
    *,
    parameters: CodecLike | Policy | None = None,
    replicas: dist.ProcessGroup | None = None,
    feedback: bool = True,
    decay: float = 1.0,
    seed: int = 0,
    exclude: str | Sequence[str] = (),
    min_numel: int = 1024,
) -> FsdpComm:
    """Make the compressed collectives of a model that `fully_shard` has sharded.

    Each rank encodes the shard of each other rank with error feedback, and sends it there. The
    owner decodes the messages in the order of ranks and averages them in float32, so the result
    depends on nothing but the gradients. All ranks must call this function with the same
    arguments; the first exchange compares them.

    Parameters
    ----------
    codec : str, mapping, Codec, Policy or None
        Codec of gradients; see `gcodec.parse` and `gcodec.Policy`. The rules of a policy match
        the names of parameters and the shapes of shards. None leaves gradients uncompressed.
    parameters : str, mapping, Codec, Policy or None
        Codec of parameters in the all-gather, such as ``"minmax:bucket=256"``, without feedback.
        The optimizer still updates exact shards. None leaves parameters uncompressed.
    replicas : ProcessGroup, optional
        Ranks of other nodes that hold the same shard. The reduce-scatter among the ranks that
        share a model then stays uncompressed, and `codec` compresses the mean over `replicas`.
    feedback : bool
        Whether to add to each message what the preceding one left out.
    decay : float
        Factor of the residual in each step; see `gcodec.Feedback`.
    seed : int
        Seed for stochastic rounding.
    exclude : str or sequence of str
        Globs; parameters whose names match one are sent uncompressed.
    min_numel : int
        Shards with fewer elements, or with fewer than two dimensions, are sent uncompressed.

    Returns
    -------
    FsdpComm

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    Under ``torchrun``, ``dist.init_process_group("gloo")`` makes the group.

    >>> import torch, torch.distributed as dist
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from torch.distributed.fsdp import fully_shard
    >>> import gcodec.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    >>> for module in (*model, model):
    ...     _ = fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    >>> comm = gcodec.torch.fsdp_comm("topk:ratio=0.05", parameters="minmax:bucket=256")
    >>> comm.register(model)
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> dist.destroy_process_group()
    """
    policies: dict[str, Policy | None] = {"codec": None, "parameters": None}
    for name, codecs in (("codec", codec), ("parameters", parameters)):
        if codecs is not None:
            policies[name] = selection.with_dense_rules(codecs, exclude, min_numel, name)
    return FsdpComm(policies, replicas, feedback=feedback, decay=decay, seed=seed)


class FsdpComm:
    """Compressed collectives of one model, the residuals of this rank, and counters.

    Attributes
    ----------
    step : int
        Number of backward passes so far.
    sent_nbytes : int
        Number of bytes that this rank has sent to other ranks.
    dense_nbytes : int
        Number of bytes that a ring would have sent for the same collectives, uncompressed.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> import gcodec.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> comm = gcodec.torch.fsdp_comm("sign")
    >>> comm.step, comm.sent_nbytes
    (0, 0)
    >>> comm.load_state_dict(comm.state_dict())  # as from a checkpoint
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        policies: Mapping[str, Policy | None],
        replicas: dist.ProcessGroup | None,
        *,
        feedback: bool,
        decay: float,
        seed: int,
    ) -> None:
        check_flag("feedback", feedback)
        policy = policies["codec"]
        if replicas is not None and policy is None:
            raise ParameterError("replicas: must come with a codec for gradients")
        check_group("replicas", replicas)
        checked = Feedback("raw", decay=decay, seed=seed)
        seed, decay = checked.seed, checked.decay
        self._key = Key(None)  # first, so that it refuses a pickle before anything else fails
        self._settings = {"feedback": feedback, "decay": decay, "seed": seed}
        self._policies, self._replicas = policies, replicas
        check_initialized("fsdp_comm")
        rank = dist.get_rank()
        worker = server = None
        if feedback and policy is not None:
            worker = Feedback(PrefixedPolicy(policy), decay=decay, seed=seed, rank=rank)
            server = Feedback(policy, decay=decay, seed=seed, rank=rank)
        self._gradients = BucketCoder(worker, seed, rank, self._key)
        self._means = BucketCoder(server, seed, rank, self._key)
        self._coders = {"worker": self._gradients, "server": self._means}
        self._parameters = BucketCoder(None, seed, rank, self._key)
        self._model: torch.nn.Module | None = None
        self._states = list[Any]()  # of FSDP2, which the modules of that model have
        self._communicators: dict[str, TorchCommunicator] = {}
        # Shapes of the residuals of all registered parameters, by the coder and the name.
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {"worker": {}, "server": {}}
        self._reduced: set[str] = set()  # modules in the last backward pass
        self._has_ended = True  # whether that pass is known to have ended
        self._passes = 0  # that `rollback` undoes
        self._awaits_replicas = False  # whether HSDP has not all-reduced that pass yet
        self._refusals: dict[str, str] = {}  # by module, for the other replicas
        self._traffic = Traffic()
        self.step = self.dense_nbytes = 0

    @property
    def sent_nbytes(self) -> int:
        """Number of bytes that this rank has sent to other ranks."""
        return self._traffic.sent_nbytes

    def register(self, model: torch.nn.Module) -> None:
        """Replace the collectives of all FSDP2 modules of a model.

        Parameters
        ----------
        model : Module
            Root module, after all calls of `fully_shard`. Register it again after
            ``load_state_dict(assign=True)``, which replaces the parameters.

        Raises
        ------
        ParameterError
            If the model has no FSDP2 module, another model is registered, `replicas` is combined
            with a mesh that replicates the model already, or a loaded state belongs to another
            model.

        Warns
        -----
        UserWarning
            If a glob of `exclude` or of a policy matches no parameter.
        """
        try:
            from torch.distributed.fsdp import FSDPModule, fully_shard
            from torch.distributed.tensor import DTensor
        except ImportError as error:
            raise ImportError(_TOO_OLD) from error
        if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
            raise ImportError(_TOO_OLD)
        names = {parameter: unwrapped(name) for name, parameter in model.named_parameters()}
        modules = [
            (unwrapped(name), module)
            for name, module in model.named_modules()
            if isinstance(module, FSDPModule)
        ]
        if not modules:
            raise ParameterError("model: none of its modules is sharded; call fully_shard first")
        if self._model not in (None, model):  # its passes and residuals would mingle
            raise ParameterError("model: another one is registered; call fsdp_comm for each model")
        globs = selection.globs_of(filter(None, self._policies.values()))
        selection.warn_of_unmatched("fsdp_comm", globs, names.values())
        layouts: list[tuple[Any, Layout]] = []
        groups: dict[Any, list[tuple[str, Any]]] = {}  # by the state that their modules share
        for name, module in modules:
            managed = [
                (names[parameter], parameter)
                for parameter in managed_parameters(module, FSDPModule)
                if isinstance(parameter, DTensor)
            ]
            group = groups.setdefault(fully_shard.state(module), [])
            group += managed
            if managed:
                place = self._place_in(managed[0][1])
                layouts.append((module, Layout(name, managed, group, place)))
        if self._policies["codec"] is not None:
            shapes = {prefix: {**known} for prefix, known in self._shapes.items()}
            for _, layout in layouts:
                self._add_shapes(shapes, layout)
            _check_residuals(self._arrays(), shapes)  # a state may have been loaded before
            self._shapes = shapes
        for module, layout in layouts:
            self._register_module(module, layout)
        self._model, self._states = model, list(groups)
        model.register_forward_pre_hook(self._end_pass)

    def _place_in(self, parameter: Any) -> int:
        """Return the number of this rank among all that hold a shard of a parameter."""
        mesh, dim = parameter.device_mesh, sharded_dim(parameter)
        replica = mesh.get_local_rank(0) if dim else 0
        if self._replicas is not None:
            replica = dist.get_rank(self._replicas)
        return int(replica * mesh.size(dim) + mesh.get_local_rank(dim))

    def _register_module(self, module: Any, layout: Layout) -> None:
        (_, parameter), *_ = layout.parameters
        mesh, is_hybrid = parameter.device_mesh, sharded_dim(parameter) > 0
        if self._policies["parameters"] is not None:
            module.set_custom_all_gather(_Collective(partial(self._all_gather, layout)))
        if self._policies["codec"] is None:
            return
        if self._replicas is not None:
            if is_hybrid:
                allowed = "None, because the mesh of the model has a dimension of replicas"
                raise ParameterError.of("replicas", self._replicas, allowed)
            module.set_all_reduce_hook(partial(self._all_reduce, layout, mesh.get_group(0)))
            return
        reduce_scatter = partial(self._reduce_scatter, layout, is_hybrid)
        module.set_custom_reduce_scatter(_Collective(reduce_scatter))
        if is_hybrid:
            module.set_all_reduce_hook(partial(self._check_replicas, layout, mesh.get_group(0)))

    def _add_shapes(
        self, shapes: Mapping[str, dict[str, tuple[int, ...]]], layout: Layout
    ) -> None:
        """Add the shapes of the residuals of a module to those of each coder."""
        (_, first), *_ = layout.parameters
        size = first.device_mesh.size(sharded_dim(first))
        worker, server = shapes["worker"], shapes["server"]
        for name, parameter in layout.parameters:
            shape = shard_shape(parameter, size)
            if self._replicas is None:
                worker |= {f"{rank}/{name}": shape for rank in range(size)}
                continue
            replicas, whole = TorchCommunicator(self._replicas), np.empty(shape, np.float32)
            shares = [share_of(whole, i, replicas.size).shape for i in range(replicas.size)]
            worker |= {f"{i}/{name}": share for i, share in enumerate(shares)}
            server[name] = shares[replicas.rank]

    # Collectives

    def _reduce_scatter(
        self,
        layout: Layout,
        is_hybrid: bool,
        output: torch.Tensor,
        buffer: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
    ) -> None:
        """Average a buffer over the ranks of a group; each rank keeps its own part."""
        is_sum = op == dist.ReduceOp.SUM
        if not is_sum and op != dist.ReduceOp.AVG:
            raise ParameterError(
                f"fsdp_comm: {layout.title}: FSDP2 asks for another reduction than SUM and AVG; "
                "call set_force_sum_reduction_for_comms(True) on each module with a factor"
            )
        communicator = self._communicator(group)
        size = communicator.size
        rows = _to_host(buffer, layout, "gradient").reshape(size, -1)
        pieces = layout.pieces(rows.shape[1], size, trainable=True)
        shares = [self._parts(row, pieces, f"{rank}/") for rank, row in enumerate(rows)]
        mean = rows[communicator.rank]  # which `average_shares` puts there
        self.dense_nbytes += (size - 1) * output.numel() * output.element_size()
        self._gradients.take_place(layout.place)
        with self._backward_pass(layout, is_hybrid):
            try:
                # Unlike DDP, no gradient that is not finite is sent.
                reason = next(filter(None, map(self._reason_of, shares)), None)
                coder, step = self._gradients, self.step
                average_shares(communicator, coder, shares, step, self._traffic, reason=reason)
            except Refused as refused:
                if not is_hybrid:
                    raise
                # The ranks of other replicas wait in an all-reduce, which carries NaN to them,
                # perhaps after further passes.
                self._refusals.setdefault(layout.module, str(refused))
                mean.fill(np.nan)
        if is_sum:
            mean *= np.float32(size)
        output.copy_(torch.from_numpy(mean))

    def _check_replicas(
        self, layout: Layout, group: dist.ProcessGroup, output: torch.Tensor
    ) -> None:
        """Raise the error of any replica, after the all-reduce of hybrid sharding."""
        self._awaits_replicas = False
        if not torch.isnan(output).all():
            return
        refusal = self._refusals.get(layout.module, "")
        reason = first_reason(self._communicator(group), refusal)
        raise self._failed(layout, reason or "the mean contains only NaN")

    def _all_reduce(self, layout: Layout, node: dist.ProcessGroup, output: torch.Tensor) -> None:
        """Average a shard over all replicas: first each share of it, then all shares."""
        replicas = self._communicator(self._replicas)
        size = replicas.size
        values = _to_host(output, layout, "gradient")
        pieces = layout.pieces(values.size, dist.get_world_size(node), trainable=True)
        parts = self._parts(values, pieces)
        policy = self._policies["codec"]
        assert policy is not None
        exchange = TwoPhase(replicas, self._gradients, self._means, policy, policy)
        self.dense_nbytes += 2 * (size - 1) * output.numel() * output.element_size() // size
        # A gradient that is not finite has reached one shard of this node only.
        reason = self._reason_of(parts, "node's mean gradient")
        reason = first_reason(self._communicator(node), reason or "")
        for coder in self._coders.values():
            coder.take_place(layout.place)
        with self._backward_pass(layout):
            exchange.average(parts, self.step, self._traffic, reason=reason or None)
        output.copy_(torch.from_numpy(values))

    def _all_gather(
        self,
        layout: Layout,
        output: torch.Tensor,
        buffer: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
    ) -> None:
        """Gather the parameters of all ranks; all ranks, also the sender, decode the messages."""
        communicator, coder = self._communicator(group), self._parameters
        size = communicator.size
        nbytes = (size - 1) * buffer.numel() * buffer.element_size()
        self.dense_nbytes += nbytes
        if not buffer.is_floating_point():  # the bytes of parameters of several dtypes
            self._traffic.sent_nbytes += nbytes
            dist.all_gather(list(output.tensor_split(size)), buffer, group=group)
            return
        values = _to_host(buffer, layout, "parameter")
        pieces = layout.pieces(values.size, size, trainable=False)
        rows = np.empty((size, values.size), np.float32)
        rows[communicator.rank] = values
        shares = [self._parts(row, pieces, f"{i}/", "parameters") for i, row in enumerate(rows)]
        coder.take_place(layout.place)
        # One seed for all steps: the forward and the backward pass see the same parameters.
        gather_shares(communicator, coder, shares, 0, self._traffic)
        output.copy_(torch.from_numpy(rows.reshape(-1)))

    def _reason_of(self, parts: Sequence[Part], kind: str = "gradient") -> str | None:
        """Return why this rank cannot send its gradients; None if all values are finite."""
        for part in parts:
            if not all_finite(part.values.reshape(-1)):
                name = part.name.partition("/")[2] or part.name
                return f"the {kind} of {name!r} contains NaN or Inf, on rank {dist.get_rank()}"
        return None

    def _parts(
        self, values: np.ndarray, pieces: Sequence[Piece], prefix: str = "", kind: str = "codec"
    ) -> list[Part]:
        """Cut a flat array into parts with the shape of each piece, and its codec by a policy.

        A piece that may contain a parameter whose name a rule sends uncompressed is uncompressed.
        The kind of the policy is "codec" for gradients, or "parameters".
        """
        parts, start = [], 0
        policy = self._policies[kind]
        assert policy is not None
        for name, shape, members in pieces:
            end = start + math.prod(shape)
            codecs = [selection.lossy_codec(policy, each, shape) for each in (name, *members)]
            codec = None if None in codecs else codecs[0]
            parts.append(Part(prefix + name, values[start:end].reshape(shape), codec))
            start = end
        return parts

    def _communicator(self, group: dist.ProcessGroup | None) -> TorchCommunicator:
        """Return the communicator of a group, whose ranks agree on the arguments."""
        communicator = TorchCommunicator(group)
        key = communicator.group.group_name
        if key not in self._communicators:
            values: dict[str, object] = {
                name: policy and policy.to_dict()["rules"]
                for name, policy in self._policies.items()
            }
            values |= self._settings
            values |= {"step": self.step, "replicas": self._replicas is not None}
            check_agreement(communicator, "fsdp_comm", values)
            self._communicators[key] = communicator
        return self._communicators[key]

    # Steps

    @contextlib.contextmanager
    def _backward_pass(self, layout: Layout, is_hybrid: bool = False) -> Iterator[None]:
        """Reduce a module; an error undoes all changes of the backward pass.

        With HSDP, it also undoes those of the passes whose sum the replicas have not reduced.
        """
        if self._has_ended or layout.module in self._reduced:  # a new pass
            if not self._awaits_replicas:
                for coder in self._coders.values():
                    coder.commit()
                self._refusals.clear()
                self._passes = 0
            self._reduced.clear()
            self._passes += 1
            self.step += 1
            self._has_ended = False
            self._awaits_replicas = is_hybrid
        self._reduced.add(layout.module)
        try:
            yield
        except Exception as error:
            raise self._failed(layout, error) from error

    def _failed(self, layout: Layout, reason: object) -> GcodecError:
        """Undo all changes of a backward pass, and return its error."""
        failure = GcodecError(f"fsdp_comm: step {self.step - 1}, {layout.title}: {reason}")
        self.rollback()
        for state in self._states:
            drop_gradients(state)
        return failure

    def _end_pass(self, *_: Any) -> None:
        self._has_ended = True

    def rollback(self) -> None:
        """Undo what the last backward pass changed in the residuals.

        With HSDP and ``set_requires_all_reduce(False)``, also undo the preceding passes that the
        replicas have not reduced. Call this on all ranks after a step that the optimizer skips.
        """
        for coder in self._coders.values():
            coder.rollback()
        self.step -= self._passes
        self._forget_passes()

    def _forget_passes(self) -> None:
        self._reduced.clear()
        self._refusals.clear()
        self._passes = 0
        self._has_ended, self._awaits_replicas = True, False

    # State

    def residual(self, name: str) -> torch.Tensor:
        """Return a copy of the unsent remainder of a shard; see `gcodec.Feedback.residual`.

        Parameters
        ----------
        name : str
            Rank of the owner and name of the parameter, such as ``"1/layer.weight"``.
        """
        feedback = self._gradients.feedback
        if feedback is None:
            raise ParameterError("fsdp_comm: there are no residuals")
        return torch.from_numpy(host(feedback.residual(name)).copy())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of this rank's residuals and counters; each rank saves its own.

        Call this method between two steps.

        Returns
        -------
        dict
            ``"step"``, ``"rank"`` and ``"size"``, int64 scalars, and the arrays of
            `gcodec.Feedback.state_dict` as tensors, with the prefix ``"worker:"``, or, for means
            over replicas, ``"server:"``.
        """
        counters = zip(_COUNTERS, (self.step, dist.get_rank(), dist.get_world_size()), strict=True)
        state = {key: torch.tensor(number, device="cpu") for key, number in counters}
        for prefix, arrays in self._arrays().items():
            state |= {f"{prefix}:{key}": torch.from_numpy(x) for key, x in arrays.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned on the same rank.

        If `register` has not been called yet, it compares the residuals with the model later.

        Raises
        ------
        ParameterError
            If `state` is not such a dict, or belongs to another rank, number of ranks or model;
            nothing changes then.

        Warns
        -----
        UserWarning
            If `state` follows steps, but contains no residuals, or if it contains residuals, but
            gradients have no feedback.
        """
        allowed = "a FsdpComm's state_dict"
        counters = saved_counters(state, _COUNTERS, allowed)
        check_same_rank(counters, dist.get_rank(), dist.get_world_size())
        arrays: dict[str, dict[str, np.ndarray]] = {prefix: {} for prefix in self._coders}
        for key, value in state.items():
            prefix, _, name = key.partition(":")
            if prefix in arrays:
                arrays[prefix][name] = saved_array(value)
            elif key not in _COUNTERS:
                raise ParameterError.of("state", key, allowed)
        check_states(arrays.values())  # before anything changes
        if self._shapes["worker"]:  # a model is registered
            _check_residuals(arrays, self._shapes)
        if counters["step"] and not arrays["worker"] and self._keeps_residuals():
            warn_of_missing_residuals("fsdp_comm")
        if self._gradients.feedback is None and any(arrays.values()):
            warn_of_lost_residuals("fsdp_comm")
        for prefix, coder in self._coders.items():
            coder.load_state_dict(arrays[prefix])
        self.step = counters["step"]
        if self._communicators:  # the ranks have compared their steps
            self._gradients.announce(self.step)
        self._forget_passes()

    def _keeps_residuals(self) -> bool:
        """Return whether any shard has feedback; before `register`, whether any may have it."""
        policy, shapes = self._policies["codec"], self._shapes["worker"].items()
        if policy is None or self._gradients.feedback is None:
            return False
        if not shapes:
            return selection.is_lossy(policy)
        return any(
            selection.lossy_codec(policy, key.partition("/")[2], shape) for key, shape in shapes
        )

    def _arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the residuals of each coder with feedback; see `gcodec.Feedback.state_dict`."""
        feedbacks = {prefix: coder.feedback for prefix, coder in self._coders.items()}
        return {
            prefix: feedback.state_dict()
            for prefix, feedback in feedbacks.items()
            if feedback is not None
        }

    def __repr__(self) -> str:
        codecs = selection.lossy_codecs(filter(None, self._policies.values()))
        nbytes = f"{self.sent_nbytes:,} bytes sent in place of {self.dense_nbytes:,}"
        return f"<FsdpComm: {codecs}, step {self.step}, {nbytes}>"


class _Collective:
    """Collective as FSDP2 calls it: a function and the allocation of its buffers."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any = dist.ReduceOp.AVG,
        async_op: bool = False,
    ) -> None:
        self._function(output_tensor, input_tensor, group, op)


def _check_residuals(
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]],
) -> None:
    """Raise `ParameterError` unless all residuals of each coder have one of its shapes."""
    for prefix, saved in arrays.items():
        cut = {key: x for key, x in saved.items() if not key.endswith(UNCUT)}
        check_shapes(cut, shapes[prefix])


def _to_host(buffer: torch.Tensor, layout: Layout, kind: str) -> np.ndarray:
    """Return the values of a buffer as float32, without a copy if they are there already.

    The kind of the values, for errors, is "gradient" or "parameter".
    """
    if buffer.dtype not in FLOATS:
        names = [name for name, p in layout.parameters if p.dtype == buffer.dtype]
        of = repr(names[0]) if names else layout.title
        allowed = "float32, float16 or bfloat16; see MixedPrecisionPolicy"
        raise ParameterError.of(f"dtype of the {kind} of {of}", buffer.dtype, allowed)
    return buffer.detach().to("cpu", torch.float32).numpy()
