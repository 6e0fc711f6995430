"""DiLoCo: workers train alone, and every so many steps average how far they went.

The pseudo-gradient of a parameter is its outer value, which all workers share, minus the value of
this worker. An exchange gathers the compressed pseudo-gradients of one fragment of the model, and
the outer optimizer takes a step along their mean. With overlap, a thread exchanges a fragment
while the worker trains on, as in Streaming DiLoCo.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from gcodec.api import encode, iter_frames
from gcodec.arrays.large_bytes import joined
from gcodec.codec import CodecLike
from gcodec.errors import Corrupt, GcodecError, ParameterError
from gcodec.feedback import Feedback
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.policy import Policy, matches_any
from gcodec.runtime.arithmetic import standardize
from gcodec.torch import selection
from gcodec.torch.agreement import Refused, check_agreement, opened, sealed
from gcodec.torch.communicator import TorchCommunicator, check_communicator
from gcodec.torch.messages import BucketCoder, Key, Part
from gcodec.torch.names import trainable_parameters
from gcodec.torch.saved_state import (
    check_shapes,
    saved_array,
    saved_count,
    warn_of_lost_residuals,
    warn_of_missing_residuals,
)
from gcodec.torch.tensors import untraced
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_flag, check_integer

_DIGEST_NBYTES = 32
_PROGRESS_NBYTES = 8  # digest of the progress of a worker, at the start of its message
_KEYS = {"inner_step", "outer_step", "outer", "optimizer", "feedback", "in_flight"}
# Errors for an object of another form, from Python, torch and its optimizers.
_MALFORMED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass
class _Flight:
    """An exchange that has begun.

    Attributes
    ----------
    fragment : int
        Index of the fragment.
    apply_at : int
        Inner step at which the outer optimizer uses the mean.
    mixing : float
        Share of the worker's own value in the parameters after that step.
    coder : BucketCoder
        Encoder whose changes of the feedback are not committed yet; after a restart, one without
        feedback.
    parts : sequence of Part
        Pseudo-gradients, which the exchange replaces by their means.
    done : Future
        Future of the exchange.
    """

    fragment: int
    apply_at: int
    mixing: float
    coder: BucketCoder
    parts: Sequence[Part]
    done: Future[None]


class _Status(NamedTuple):
    """State that a worker announces to the others when a group forms.

    Attributes
    ----------
    is_fresh : bool
        Whether the worker has no outer state of its own.
    inner_step, outer_step : int
    due : list of int
        Fragments whose exchange is unfinished.
    digest : str
        Digest of the outer state.
    nonce : str
        Random text, so that no message of another group has a valid tag.
    """

    is_fresh: bool
    inner_step: int
    outer_step: int
    due: list[int]
    digest: str
    nonce: str


class DiLoCo:
    """Infrequent exchange of compressed pseudo-gradients between replicas of a model.

    Call `step` after each step of the inner optimizer. Workers that construct this object with
    the same group start with the parameters of rank 0. All of them need the same arguments.

    Parameters
    ----------
    model : Module or iterable of (name, parameter)
        Replica of this worker. Its parameters are exchanged; buffers are not.
    outer_optimizer : Optimizer
        Optimizer over the same parameters, such as SGD with Nesterov momentum. It receives the
        mean pseudo-gradient as the gradient.
    codec : str, mapping, Codec or Policy
        See `gcodec.parse` and `gcodec.Policy`.
    every : int
        Number of inner steps from one exchange of a parameter to the next.
    fragments : int or sequence of sequences of str
        Number of fragments of about equal size, or the globs of each fragment's parameters. The
        exchanges of fragments are spread evenly over `every` steps.
    overlap : int
        Number of inner steps that an exchange may take. The result is used that much later.
    mixing : float
        With overlap, the share of a worker's own value in a parameter after an outer step.
    feedback : bool
        Whether to add to each message what the preceding one left out.
    decay : float
        Factor of the residual in each exchange; see `gcodec.Feedback`.
    seed : int
        Seed for stochastic rounding.
    exclude : str or sequence of str
        Globs; parameters whose names match one are sent uncompressed.
    min_numel : int
        Tensors with fewer elements, or with fewer than two dimensions, are sent uncompressed.
    communicator : Communicator, optional
        Group of workers. Default: a gloo group of all processes of torch.distributed.
    timeout : float, optional
        Number of seconds after which the default group fails if a worker does not answer.
    key : bytes, optional
        Secret of 1 to 64 bytes that authenticates all exchanged values.

    Attributes
    ----------
    inner_step, outer_step : int
        Number of inner steps, and of exchanges of any fragment, so far.
    sent_nbytes : int
        Number of bytes that this worker has sent to others.
    dense_nbytes : int
        Number of bytes that ring all-reduces of float32 values would have sent in their place.

    Raises
    ------
    ParameterError
        If an argument is out of range, or the workers' arguments differ.

    Warns
    -----
    UserWarning
        If a glob of `codec` or `exclude` matches no parameter.

    Examples
    --------
    >>> import torch, gcodec.torch
    >>> from gcodec.training import Simulator
    >>> def worker(communicator):
    ...     model = torch.nn.Linear(64, 32)
    ...     inner = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    ...     diloco = gcodec.torch.DiLoCo(
    ...         model, outer, "ecsq:bits=2", every=4, communicator=communicator
    ...     )
    ...     for step in range(8):
    ...         inner.zero_grad()
    ...         model(torch.ones(1, 64) + communicator.rank).square().mean().backward()
    ...         inner.step()
    ...         diloco.step()
    ...     return model.weight.detach()
    >>> first, second = Simulator(2).run(worker)
    >>> torch.equal(first, second)
    True
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
        outer_optimizer: torch.optim.Optimizer,
        codec: CodecLike | Policy,
        *,
        every: int,
        fragments: int | Sequence[Sequence[str]] = 1,
        overlap: int = 0,
        mixing: float = 0.5,
        feedback: bool = True,
        decay: float = 1.0,
        seed: int = 0,
        exclude: str | Sequence[str] = (),
        min_numel: int = 1024,
        communicator: Communicator | None = None,
        timeout: float | None = None,
        key: bytes | None = None,
    ) -> None:
        self._key = Key(key)
        self._period = check_integer("every", every, 1, 1 << 40, "an integer from 1 to 2**40")
        allowed = "an integer from 0 to every - 1"
        self._overlap = check_integer("overlap", overlap, 0, self._period - 1, allowed)
        check_between("mixing", mixing, 0, 1, "a number from 0 to 1")
        self._mixing = float(mixing)
        check_flag("feedback", feedback)
        self._policy = selection.with_dense_rules(codec, exclude, min_numel)
        checked = Feedback(self._policy, decay=decay, seed=seed)
        self._seed = checked.seed
        self._feedback = checked if feedback else None
        self._parameters = trainable_parameters(model)
        needs_closure = isinstance(outer_optimizer, torch.optim.LBFGS)
        if needs_closure or not isinstance(outer_optimizer, torch.optim.Optimizer):
            allowed = "a torch.optim.Optimizer whose step needs no closure"
            raise ParameterError.of("outer_optimizer", outer_optimizer, allowed)
        self._optimizer = outer_optimizer
        held = {p for group in outer_optimizer.param_groups for p in group["params"]}
        if held != set(self._parameters.values()):
            allowed = "must hold exactly the parameters of the model that require gradients"
            raise ParameterError(f"outer_optimizer: {allowed}")
        globs = selection.globs_of([self._policy])
        selection.warn_of_unmatched("DiLoCo", globs, self._parameters)
        self._fragments = _fragments_of(self._parameters, fragments)
        self._outer = {name: p.detach().clone() for name, p in self._parameters.items()}
        self.inner_step = self.outer_step = 0
        self.sent_nbytes = self.dense_nbytes = 0
        self._is_fresh = True
        self._flights: list[_Flight] = []  # in the order of their exchanges
        self._due: list[int] = []  # fragments to exchange in this step
        self._failure: Exception | None = None
        self._has_agreed = False  # whether an exchange has compared the outer state
        self._session = b""  # identifies the group; each of its workers derives it
        self._thread: ThreadPoolExecutor | None = None
        self._settings = {
            "policy": self._policy.to_dict()["rules"],
            "every": self._period,
            "fragments": self._fragments,
            "overlap": self._overlap,
            "mixing": self._mixing,
            "feedback": feedback,
            "decay": checked.decay,
            "seed": checked.seed,
            "shapes": {name: list(p.shape) for name, p in self._parameters.items()},
            "keyed": key is not None,
        }
        self._communicator: Communicator
        if communicator is None:
            communicator = TorchCommunicator.apart(timeout=timeout)
        self.regroup(communicator)

    # Steps

    @untraced
    def step(self) -> None:
        """Count an inner step, and exchange the fragments that are due.

        Raises
        ------
        GcodecError
            If a worker cannot take part, for example because its parameters contain NaN. All
            workers then raise the error, and keep their feedback and outer parameters; see
            `restore`. Also if the communication fails; see `regroup`.
        """
        if self._failure is not None:
            raise GcodecError(f"call regroup first: {self._failure}") from self._failure
        self.inner_step += 1
        count = len(self._fragments)
        offsets = [(index + 1) * self._period // count for index in range(count)]
        self._due = [
            index
            for index, offset in enumerate(offsets)
            if (self.inner_step - offset) % self._period == 0
        ]
        while self._flights and self._flights[0].apply_at <= self.inner_step:
            self._finish()
        while self._due:
            self._start(self._due[0], self._overlap)
            del self._due[0]
            if not self._overlap:
                self._finish()

    def restore(self) -> None:
        """Return the model to the outer parameters, which all workers share."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._outer[name])

    def _start(self, fragment: int, overlap: int) -> None:
        """Begin the exchange of a fragment."""
        names = self._fragments[fragment]
        parts = []
        for name in names:
            difference = self._outer[name].float() - self._parameters[name].detach().float()
            values = difference.to("cpu").contiguous().numpy()
            lossy = selection.lossy_codec(self._policy, name, values.shape)
            parts.append(Part(name, values, lossy))
        communicator, rank = self._communicator, self._communicator.rank
        progress = self._progress()
        self._has_agreed = True
        secret = self._key_of("exchange", self.outer_step + len(self._flights), fragment)
        coder = BucketCoder(self._feedback, self._seed, rank, Key(secret))
        nbytes = sum(part.values.nbytes for part in parts)
        self.dense_nbytes += 2 * nbytes * (communicator.size - 1) // communicator.size
        done: Future[None]
        if overlap:
            self._thread = self._thread or ThreadPoolExecutor(
                1, "gcodec-diloco", initializer=standardize
            )
            done = self._thread.submit(self._exchange, coder, parts, self.outer_step, progress)
        else:
            done = Future()
            try:
                self._exchange(coder, parts, self.outer_step, progress)
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)
        mixing = self._mixing if overlap else 0.0
        apply_at = self.inner_step + overlap
        self._flights.append(_Flight(fragment, apply_at, mixing, coder, parts, done))

    def _progress(self) -> dict[str, object]:
        """Return what all workers must share.

        The outer state is part of it until an exchange has compared it; from then on, all workers
        change it in the same way if their outer optimizers have the same settings.
        """
        progress: dict[str, object] = {
            "inner_step": self.inner_step,
            "outer_step": self.outer_step,
        }
        state = self._optimizer.state_dict()
        for index, group in enumerate(state["param_groups"]):
            place = f"outer_optimizer.param_groups[{index}]"
            for name, value in group.items():
                progress[f"{place}[{name!r}]"] = _setting(value)
        if not self._has_agreed:
            digest = hashlib.blake2b(digest_size=_DIGEST_NBYTES)
            entries = [entry for _, entry in sorted(state["state"].items())]
            values = [x for entry in entries for _, x in sorted(entry.items())]
            for value in (*self._outer.values(), *values):
                is_tensor = isinstance(value, torch.Tensor)
                digest.update(_bytes_of(value).data if is_tensor else repr(value).encode())
            progress["digest of the outer state"] = digest.hexdigest()
        return progress

    def _exchange(
        self,
        coder: BucketCoder,
        parts: Sequence[Part],
        step: int,
        progress: Mapping[str, object],
    ) -> None:
        """Replace pseudo-gradients by their means over all workers, if these have agreed."""
        # A worker that has received the settings of its optimizer has them in another order.
        text = json.dumps(progress, sort_keys=True).encode()
        own = hashlib.blake2b(text, digest_size=_PROGRESS_NBYTES).digest()

        def write() -> list[bytes]:
            for part in parts:
                if not all_finite(part.values.reshape(-1)):
                    what = f"the pseudo-gradient of {part.name!r}"
                    raise ParameterError(f"{what} contains NaN or Inf")
            return [own + coder.encode(parts, step)]

        [message] = sealed(write, 1, self._communicator.rank)
        messages = self._communicator.all_gather(message)
        self.sent_nbytes += (len(messages) - 1) * len(message)
        contents = opened(messages)
        if any(content[:_PROGRESS_NBYTES] != own for content in contents):  # on all workers
            try:
                check_agreement(self._communicator, "exchange", progress)
            except ParameterError as error:
                advice = "all must load the same checkpoint, and set outer_optimizer alike"
                raise Refused(f"{error}; {advice}") from None
        coder.average(parts, [content[_PROGRESS_NBYTES:] for content in contents])

    def _finish(self) -> None:
        """Wait for the first exchange, and take its outer step."""
        flight = self._flights[0]
        try:
            flight.done.result()
        except Refused as refused:
            self._has_agreed = False
            del self._flights[0]
            flight.coder.rollback()
            raise _failure(self.outer_step, flight, refused) from None
        except Exception as error:
            self._failure = _failure(self.outer_step, flight, error)
            raise self._failure from error
        self._take_outer_step(flight)
        flight.coder.commit()
        del self._flights[0]

    def _take_outer_step(self, flight: _Flight) -> None:
        gradients = {name: p.grad for name, p in self._parameters.items()}
        own = {}
        with torch.no_grad():
            for parameter in self._parameters.values():
                parameter.grad = None
            for name, values, _ in flight.parts:
                parameter = self._parameters[name]
                own[name] = parameter.detach().clone()
                parameter.copy_(self._outer[name])
                if values.any():  # else nobody has changed it, as if it is frozen
                    # Fused optimizers need gradients in the layout of the parameters.
                    parameter.grad = torch.empty_like(own[name]).copy_(torch.from_numpy(values))
        self._optimizer.step()
        with torch.no_grad():
            for name, local in own.items():
                parameter = self._parameters[name]
                self._outer[name].copy_(parameter)
                if flight.mixing:
                    parameter.lerp_(local, flight.mixing)
            for name, parameter in self._parameters.items():
                parameter.grad = gradients[name]
        self.outer_step += 1

    # Groups

    def regroup(self, communicator: Communicator) -> None:
        """Continue with another group of workers, after some have left or joined.

        All members of the new group call this method together; for a worker that joins, the
        constructor does. Workers without the newest outer state receive it, as frames whose
        digest they compare, from the lowest rank that has it. Then all members repeat the
        exchanges that failed.

        Parameters
        ----------
        communicator : Communicator
            Group of workers, such as the `TorchCommunicator` of a new process group.

        Raises
        ------
        ParameterError
            If the workers' arguments differ.
        FormatError
            If the received state is damaged or has another digest.
        """
        check_communicator(communicator)
        for flight in self._flights:
            flight.done.exception()  # waits for its end
        self._communicator = communicator
        if self._feedback is not None:
            self._feedback.rank = communicator.rank
        self._has_agreed = False
        check_agreement(communicator, "DiLoCo", self._settings)
        message = self._state_message(None)
        unfinished = [*(flight.fragment for flight in self._flights), *self._due]
        self._due = [*dict.fromkeys(unfinished)]
        own = _Status(
            self._is_fresh,
            self.inner_step,
            self.outer_step,
            self._due,
            _digest(message),
            os.urandom(16).hex(),
        )
        texts = communicator.all_gather(json.dumps(own).encode())
        self._session = hashlib.blake2b(joined(texts), digest_size=_DIGEST_NBYTES).digest()
        statuses = [_Status(*json.loads(text)) for text in texts]
        root = max(
            range(len(statuses)),
            key=lambda rank: (not statuses[rank].is_fresh, statuses[rank].outer_step, -rank),
        )
        newest = statuses[root]
        # Messages that the newest worker has used count as sent.
        used = newest.outer_step - self.outer_step
        for index, flight in enumerate(self._flights):
            if index < used:
                flight.coder.commit()
            else:
                flight.coder.rollback()
        self._flights.clear()
        if any(status.digest != newest.digest for status in statuses):
            self._share_state(newest, root, is_own=own.digest == newest.digest)
        self.inner_step, self.outer_step = newest.inner_step, newest.outer_step
        self._is_fresh = False
        self._failure, self._due = None, list(newest.due)
        while self._due:
            self._start(self._due[0], overlap=0)
            self._finish()
            del self._due[0]

    def _share_state(self, newest: _Status, root: int, *, is_own: bool) -> None:
        """Send the newest outer state from one rank to all; use it unless it is the own one."""
        secret = self._key_of("state", newest.outer_step, root)
        sent = self._state_message(secret) if self._communicator.rank == root else b""
        received = self._communicator.broadcast(sent, root)
        self.sent_nbytes += (self._communicator.size - 1) * len(sent)
        if not is_own:
            self._is_fresh = True  # until the state is complete
            self._load_state_message(received, secret, newest.digest)
            self.restore()

    def _key_of(self, purpose: str, step: int, index: int) -> bytes | None:
        """Return a key that is valid for one message of each worker in this group."""
        if self._key.value is None:
            return None
        text = f"gcodec DiLoCo {purpose} {step} {index}".encode()
        return hashlib.blake2b(text + self._session, key=self._key.value).digest()

    def _state_message(self, key: bytes | None) -> bytes:
        """Return the outer parameters and the state of the outer optimizer as frames."""
        tensors = [("outer:" + name, tensor) for name, tensor in self._outer.items()]
        state = self._optimizer.state_dict()
        numbers: dict[str, Any] = {}
        for index, values in sorted(state["state"].items()):  # received ones have another order
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors.append((f"state:{index}:{name}", value))
                else:
                    numbers[f"{index}:{name}"] = value
        header = {
            "numbers": numbers,
            "groups": state["param_groups"],
            "tensors": [[name, str(x.dtype), list(x.shape)] for name, x in tensors],
        }
        try:
            text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8)
        except TypeError as error:  # such as a learning rate that is a tensor
            allowed = "its settings must be numbers, texts, and lists of them"
            raise ParameterError(f"outer_optimizer: {allowed}: {error}") from error
        arrays = [("header", text), *((name, _bytes_of(tensor)) for name, tensor in tensors)]
        return joined([encode(array, "raw", name=name, key=key) for name, array in arrays])

    def _load_state_message(self, message: bytes, key: bytes | None, digest: str) -> None:
        largest = max((tensor.numel() for tensor in self._outer.values()), default=0)
        most = max(8 * largest, 1 << 24)  # bytes of a tensor
        limits = Limits(max_elements=most, max_bytes=most)
        arrays = {}
        for frame in iter_frames(message, limits=limits, key=key):
            if frame.codec.name != "raw":  # other codecs may state any number of values
                raise Corrupt(f"the state of another worker: {frame.name!r} is not sent raw")
            arrays[frame.name] = frame.decode()
        try:
            header = json.loads(arrays["header"].tobytes())
            tensors = {
                name: _tensor_of(arrays[name], dtype, shape)
                for name, dtype, shape in header["tensors"]
            }
            outer = {name: tensors["outer:" + name] for name in self._outer}
            state: dict[int, dict[str, Any]] = {}
            for path, value in header["numbers"].items():
                index, _, name = path.partition(":")
                state.setdefault(int(index), {})[name] = value
            for path, tensor in tensors.items():
                kind, _, rest = path.partition(":")
                if kind == "state":
                    index, _, name = rest.partition(":")
                    state.setdefault(int(index), {})[name] = tensor
        except _MALFORMED as error:
            raise Corrupt(f"the state of another worker: {error}") from error
        for name, tensor in outer.items():
            if tensor.shape != self._outer[name].shape:
                raise Corrupt(f"the state of another worker: {name!r} has another shape")
            self._outer[name].copy_(tensor)
        try:
            self._optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
            self._keep_exactly(state)
        except _MALFORMED as error:
            raise Corrupt(f"the state of another worker: {error}") from error
        if _digest(self._state_message(None)) != digest:
            raise Corrupt("the state of another worker does not have the digest that it announced")

    def _keep_exactly(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Undo what the optimizer has changed in the tensors of a state that it has loaded.

        It rounds them to the dtypes of their parameters. Tensors in the shape of a parameter also
        get its layout, which messages and some files lack, because fused optimizers need it.
        """
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            kept = self._optimizer.state.get(parameter, {})
            for name, value in state.get(index, {}).items():
                if isinstance(value, torch.Tensor) and isinstance(kept.get(name), torch.Tensor):
                    like = parameter.detach() if value.shape == parameter.shape else value
                    exact = torch.empty_like(like, dtype=value.dtype, device=kept[name].device)
                    kept[name] = exact.copy_(value)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the outer state, this worker's residuals and counters; each worker saves its own.

        An exchange under way is waited for, and its mean saved. The model and the inner optimizer
        are not part of it.

        Returns
        -------
        dict
            Plain values and tensors, which ``torch.load(weights_only=True)`` accepts.

        Raises
        ------
        GcodecError
            If an exchange has failed; see `step`.
        """
        in_flight = []
        for step, flight in enumerate(self._flights, self.outer_step):
            if error := flight.done.exception():
                raise _failure(step, flight, error) from error
            means = {part.name: torch.from_numpy(part.values.copy()) for part in flight.parts}
            in_flight.append([flight.fragment, flight.apply_at, means])
        arrays = {} if self._feedback is None else self._feedback.state_dict()
        return {
            "inner_step": self.inner_step,
            "outer_step": self.outer_step,
            "outer": {name: tensor.clone() for name, tensor in self._outer.items()},
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "feedback": {name: torch.from_numpy(array) for name, array in arrays.items()},
            "in_flight": in_flight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned.

        All workers load the same checkpoint: the next exchange fails on all of them if their
        steps, outer parameters or outer optimizers differ.

        Raises
        ------
        ParameterError
            If `state` is not such a dict, or belongs to another model; nothing changes then.

        Warns
        -----
        UserWarning
            If `state` follows exchanges, but contains no residuals, or if it contains residuals,
            but there is no feedback.
        """
        allowed = "a DiLoCo's state_dict"
        if not isinstance(state, Mapping) or state.keys() != _KEYS:
            raise ParameterError.of("state", state, allowed)
        own = {name: tuple(tensor.shape) for name, tensor in self._outer.items()}
        try:
            inner_step = saved_count("state['inner_step']", state["inner_step"])
            outer_step = saved_count("state['outer_step']", state["outer_step"])
            shapes = {name: tuple(x.shape) for name, x in state["outer"].items()}
            arrays = {name: saved_array(x) for name, x in state["feedback"].items()}
            landed = [self._landed(*flight) for flight in state["in_flight"]]
            owned = [part for flight in landed for part in flight.parts]
        except _MALFORMED as error:
            raise ParameterError(f"state: must be {allowed}: {error}") from error
        if shapes != own or any(part.values.shape != own.get(part.name) for part in owned):
            raise ParameterError("state: its parameters are not those of the model")
        check_shapes(arrays, own)
        codecs = (selection.lossy_codec(self._policy, *item) for item in own.items())
        if outer_step and self._feedback is not None and not arrays and any(codecs):
            warn_of_missing_residuals("DiLoCo")
        if self._feedback is None and arrays:
            warn_of_lost_residuals("DiLoCo")
        for flight in self._flights:
            flight.done.exception()  # waits for its end
        feedback = copy.copy(self._feedback)
        if feedback is not None:
            feedback.load_state_dict(arrays)
        try:
            # The optimizer would change the tensors of the caller.
            self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            self._keep_exactly(state["optimizer"]["state"])
        except _MALFORMED as error:
            raise ParameterError(f"state['optimizer']: {error}") from error
        self._feedback = feedback
        for name, tensor in state["outer"].items():
            self._outer[name].copy_(tensor)
        self.inner_step, self.outer_step = inner_step, outer_step
        self._due, self._flights = [], landed
        self._has_agreed = False

    def _landed(self, fragment: int, apply_at: int, means: Mapping[str, torch.Tensor]) -> _Flight:
        """Return an exchange that has ended with these means."""
        done: Future[None] = Future()
        done.set_result(None)
        last = len(self._fragments) - 1
        fragment = check_integer("fragment", fragment, 0, last, f"an integer from 0 to {last}")
        apply_at = saved_count("apply_at", apply_at)
        names = self._fragments[fragment]
        if sorted(means) != sorted(names):  # the mean of a parameter would be lost
            allowed = f"those of fragment {fragment}, with the fragments of the run that saved it"
            raise ParameterError.of("means under way", sorted(means), allowed)
        parts = [Part(name, saved_array(means[name]).copy(), None) for name in names]
        coder = BucketCoder(None, self._seed, 0, Key(None))  # the feedback counts it as sent
        return _Flight(fragment, apply_at, self._mixing, coder, parts, done)

    def residual(self, name: str) -> torch.Tensor:
        """Return a copy of the unsent remainder of a parameter; see `gcodec.Feedback.residual`."""
        if self._feedback is None:
            raise ParameterError("feedback=False: there are no residuals")
        return torch.from_numpy(np.array(self._feedback.residual(name)))

    def __repr__(self) -> str:
        codecs = selection.lossy_codecs([self._policy])
        steps = f"inner step {self.inner_step}, outer step {self.outer_step}"
        nbytes = f"{self.sent_nbytes:,} bytes sent in place of {self.dense_nbytes:,}"
        return f"<DiLoCo: {codecs}, every {self._period}, {steps}, {nbytes}>"


def _fragments_of(
    parameters: Mapping[str, torch.Tensor], fragments: int | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return the names of the parameters of each fragment."""
    if isinstance(fragments, (int, np.integer)) and not isinstance(fragments, bool):
        allowed = f"an integer from 1 to {len(parameters)}, the number of parameters"
        count = check_integer("fragments", fragments, 1, max(len(parameters), 1), allowed)
        total = sum(p.numel() for p in parameters.values())
        parts: list[list[str]] = [[] for _ in range(count)]
        start = 0
        for name, parameter in parameters.items():
            parts[min(count * start // max(total, 1), count - 1)].append(name)
            start += parameter.numel()
        return [part for part in parts if part]
    allowed = "a number, or a sequence of sequences of globs"
    if isinstance(fragments, (str, bytes)) or not isinstance(fragments, Sequence):
        raise ParameterError.of("fragments", fragments, allowed)
    parts = []
    for globs in fragments:
        is_sequence = isinstance(globs, Sequence) and not isinstance(globs, (str, bytes))
        if not is_sequence or not all(isinstance(glob, str) for glob in globs):
            raise ParameterError.of("fragments", fragments, allowed)
        parts.append([name for name in parameters if matches_any(name, globs)])
    for name in parameters:
        matches = sum(name in part for part in parts)
        if matches != 1:
            raise ParameterError(f"fragments: {name!r} must be in one of them, not in {matches}")
    return parts


def _setting(value: object) -> object:
    """Return a setting of an optimizer for the comparison of workers.

    A worker that has received the settings has lists in place of tuples, such as those of `betas`.
    """
    if isinstance(value, (list, tuple)):
        return [_setting(item) for item in value]
    return value if isinstance(value, (int, float, str)) else repr(value)


def _failure(step: int, flight: _Flight, error: BaseException) -> GcodecError:
    """Return the error of an outer step whose exchange has failed."""
    return GcodecError(f"DiLoCo: outer step {step}, fragment {flight.fragment}: {error}")


def _digest(message: bytes) -> str:
    return hashlib.blake2b(message, digest_size=_DIGEST_NBYTES).hexdigest()


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a tensor of any dtype."""
    values = _flat(tensor.detach().to("cpu").contiguous())
    return np.asarray(values.view(torch.uint8).numpy())


def _tensor_of(array: np.ndarray, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor with these bytes; the inverse of `_bytes_of`."""
    kind = getattr(torch, str(dtype).removeprefix("torch."))
    return _flat(torch.from_numpy(array.copy())).view(kind).reshape(tuple(shape))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as a vector of stride 1, which empty ones of NumPy do not have."""
    return tensor.as_strided((tensor.numel(),), (1,))
