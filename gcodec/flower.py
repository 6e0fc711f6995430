"""gcodec for Flower: clients send compressed updates, and strategies see plain arrays.

    app = ClientApp(mods=[gcodec.flower.FrameMod("ecsq:nmse=0.05", key=KEY)])

    @server.main()
    def main(grid, context):
        strategy.start(gcodec.flower.FrameGrid(grid, key=KEY), initial_arrays)

Needs the extra ``flower``. A mod and a grid are the two ends of one connection. The mod subtracts
the received arrays from the arrays that the client returns, and sends the difference with error
feedback across rounds. The grid adds the difference to the arrays that it sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("gcodec.flower needs Flower: pip install 'gcodec[flower]'") from error

from gcodec.api import encode
from gcodec.arrays.nonfinite import has_nonfinite
from gcodec.codec import CodecLike
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.feedback import Feedback, derive_seed
from gcodec.frame import Frame, check_key, tag_of
from gcodec.limits import NO_LIMITS, Limits
from gcodec.policy import Policy, PrefixedPolicy, policy_of
from gcodec.wire.kinds import check_flag, check_positive

__all__ = ["FrameGrid", "FrameMod"]

_STYPE = "gcodec.frame"  # serialization type of an Array whose data is a frame
_RECORD = "gcodec"  # gcodec's own record in a message
_STATE, _BEFORE = "gcodec.feedback", "gcodec.feedback.before"  # records of a client's state
_UPDATE, _VALUE = "update:", "value:"  # the name of a frame is its kind, then that of the array
_UNKNOWN = "unknown"  # in place of a nonce: another grid has had the updates of this node so far
_MAX_WEIGHT = 2**53  # largest weight of a client's update in a mean
_INTEGERS = "biu"  # kinds of dtypes
_MOD_FAILED = 6  # Flower's code for a mod that refuses a message

_Next = Callable[[Message, Any], Message]


class FrameMod:
    """Client mod that receives and sends arrays as frames.

    The mod must be the first of the app's mods, because it must see the reply last. The residual
    of each array stays in the client's context. If the server did not accept the client's last
    update, the residual returns to its value before that update.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        Codec of updates; see `gcodec.parse` and `gcodec.Policy`. Integers are sent without loss.
        So are arrays that the client did not receive with the same shape and the same or a wider
        dtype.
    key : bytes, optional
        Secret of 1 to 64 bytes that this client shares with the server. Its tags authenticate
        arrays and metrics, and each tag is valid for one message.
    feedback : bool
        Whether to add to each update what the preceding one left out. This pays off if the client
        takes part often.
    decay : float
        Factor of the residual in each round; see `gcodec.Feedback`.
    seed : int
        Seed for stochastic rounding.
    limits : Limits, optional
        Bounds on each array of the server's messages; see `gcodec.Limits`.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import gcodec.flower
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[gcodec.flower.FrameMod("qsgd:bucket=512")])
    """

    def __init__(
        self,
        codec: CodecLike | Policy,
        *,
        key: bytes | None = None,
        feedback: bool = True,
        decay: float = 1.0,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self._policy = policy_of(codec)
        self._key = check_key(key)
        self._has_feedback = check_flag("feedback", feedback)
        self._decay, self._seed = decay, seed
        self._limits = Limits.or_default(limits)
        Feedback(self._policy, decay=decay, seed=seed)  # refuses invalid arguments

    def __call__(self, message: Message, context: Any, call_next: _Next) -> Message:
        """Decode the arrays of a message, and encode those of its reply."""
        settings = message.content.config_records.get(_RECORD)
        if settings is None:
            if self._key is not None:
                return _refusal(message, "the server does not use a FrameGrid")
            return call_next(message, context)
        nonce, accepted = settings.get("nonce"), settings.get("accepted")
        if not isinstance(nonce, str) or not isinstance(accepted, str):
            return _refusal(message, "the server's message: has no nonces")
        node = int(context.node_id)
        try:
            key = _key_of(self._key, "server", nonce, node)
            message.content = _plain_instruction(message.content, key, self._limits)
        except FormatError as error:
            return _refusal(message, f"the server's message: {error}")
        received = _arrays_of(message.content)
        reply = call_next(message, context)
        if reply.has_content():
            key = _key_of(self._key, "client", nonce, node)
            last = context.state.config_records.get(_RECORD, {"nonce": "", "replies": 0})
            feedback = self._restored(context, accepted in (last["nonce"], _UNKNOWN), received)
            before, replies = feedback.state_dict(), int(last["replies"])
            try:
                reply.content = self._encoded(reply.content, received, feedback, replies, key)
            except (ParameterError, TypeError) as error:
                return _refusal(message, f"the client's reply: {error}")
            if reply.content.array_records:
                context.state[_BEFORE] = _to_record(before)
                context.state[_STATE] = _to_record(feedback.state_dict())
                context.state[_RECORD] = ConfigRecord({"nonce": nonce, "replies": replies + 1})
        return reply

    def _restored(
        self, context: Any, was_accepted: bool, received: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Feedback:
        """Return this client's feedback, as it was before the last update if that was dropped.

        Residuals of arrays that the client has now received in another shape are left out.
        """
        policy, rank = PrefixedPolicy(self._policy), int(context.node_id) % (1 << 64)
        feedback = Feedback(policy, decay=self._decay, seed=self._seed, rank=rank)
        record = context.state.array_records.get(_STATE if was_accepted else _BEFORE)
        if record is not None:
            saved = _to_numpy(record)
            stale = {
                f"{_UPDATE}{name}/{key}"
                for name, arrays in received.items()
                for key, array in arrays.items()
                if saved.get(f"residual:{_UPDATE}{name}/{key}", array).shape != array.shape
            }
            kept = {key: x for key, x in saved.items() if key.partition(":")[2] not in stale}
            feedback.load_state_dict(kept)
        return feedback

    def _encoded(
        self,
        content: RecordDict,
        received: Mapping[str, Mapping[str, np.ndarray]],
        feedback: Feedback,
        replies: int,
        key: bytes | None,
    ) -> RecordDict:
        """Return the records of a reply with frames in place of arrays."""
        records: dict[str, Any] = dict(content)
        for name, arrays in _arrays_of(content).items():
            frames = {}
            for key_of_array, array in arrays.items():
                base = received.get(name, {}).get(key_of_array)
                path = f"{name}/{key_of_array}"
                is_float = base is not None and array.dtype.kind == base.dtype.kind == "f"
                if base is not None and is_float and np.can_cast(array.dtype, base.dtype):
                    array = array.astype(base.dtype)  # some strategies return float64
                # No codec compresses the difference of integers, or of arrays of other kinds.
                if base is None or not is_float or _kind(array) != _kind(base):
                    frame = encode(array, "raw", name=_VALUE + path, key=key)
                elif self._has_feedback:
                    frame = feedback.compress(_UPDATE + path, array - base, key=key)
                else:
                    codec = self._policy.codec(key_of_array, array.shape, array.dtype)
                    seed = derive_seed(self._seed, name=path, step=replies, rank=feedback.rank)
                    frame = encode(array - base, codec, seed=seed, name=_UPDATE + path, key=key)
                frames[key_of_array] = _frame_array(array, frame)
            records[name] = ArrayRecord(frames)
        if key is not None:
            records[_RECORD] = ConfigRecord({"tag": _tag_of_metrics(content, key)})
        return RecordDict(records)


class _Sent(NamedTuple):
    """A message to a client.

    Attributes
    ----------
    message : Message
    nonce : str
        Text that is unique to the message.
    arrays : dict
        Arrays that the client decodes, by the names of the record and the array.
    """

    message: Message
    nonce: str
    arrays: dict[str, dict[str, np.ndarray]]


class _Encoded(NamedTuple):
    """A record of arrays for clients.

    Attributes
    ----------
    record, frames : ArrayRecord
        Record of the strategy, which is kept so that no other one has its identity, and the
        record that is sent.
    arrays : dict
        Arrays that a client decodes, by name.
    """

    record: ArrayRecord
    frames: ArrayRecord
    arrays: dict[str, np.ndarray]


class FrameGrid(Grid):
    """Grid whose replies contain plain arrays, whatever codec the clients chose.

    Pass it to any strategy in place of the grid that the server app received. A reply that is
    damaged, hostile or not authentic reaches the strategy as an error with the reason, as if the
    client had failed; the round goes on with the other replies.

    Parameters
    ----------
    grid : Grid
        Grid of the server app.
    codec : str, mapping, Codec or Policy, optional
        Codec of the arrays that clients receive, without feedback. Default: without loss.
    key : bytes or callable, optional
        Secret that the server shares with its clients, or a function that returns the secret of
        a client, given the id of its node.
    max_norm : float, optional
        Largest allowed L2 norm of an update. Arrays that were integers when the grid first sent
        them do not count. Default: any finite update is allowed.
    limits : Limits, optional
        Bounds on the sum of those arrays of a reply that the client did not receive; see
        `gcodec.Limits`.
    weighted_by : str
        Metric that weights a client's update in the strategy's mean: the strategy's
        ``weighted_by_key``. The grid drops replies with a negative weight, and all replies if none
        has a weight above 0.

    Attributes
    ----------
    dropped : list of (int, str)
        Node and reason of each reply that was dropped.
    sent_nbytes, received_nbytes : int
        Number of bytes of arrays and frames in messages and replies so far.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import gcodec.flower
    >>> from flwr.serverapp import ServerApp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> app = ServerApp()
    >>> @app.main()
    ... def main(grid, context):
    ...     FedAvg().start(gcodec.flower.FrameGrid(grid, max_norm=10), initial_arrays)
    """

    def __init__(
        self,
        grid: Grid,
        *,
        codec: CodecLike | Policy | None = None,
        key: bytes | Callable[[int], bytes] | None = None,
        max_norm: float | None = None,
        limits: Limits | None = None,
        weighted_by: str = "num-examples",
    ) -> None:
        if not isinstance(weighted_by, str):
            raise ParameterError.of("weighted_by", weighted_by, "the name of a metric")
        self._grid, self._weighted_by = grid, weighted_by
        self._policy = None if codec is None else policy_of(codec)
        self._secret = key if callable(key) else check_key(key)
        self._max_norm = math.inf if max_norm is None else check_positive("max_norm", max_norm)
        self._limits = Limits.or_default(limits)
        self._sent: dict[str, _Sent] = {}  # by the id of the message
        self._accepted: dict[int, str] = {}  # nonce of the last update of each node, if any
        self._integers: set[str] = set()  # paths of arrays that were integers when first sent
        self._rounds = 0  # number of times that messages were sent
        self.dropped: list[tuple[int, str]] = []
        self.sent_nbytes = self.received_nbytes = 0

    # Methods of every grid

    def set_run(self, run: Any) -> None:
        """Set the run of the grid of the server app."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Run of the grid of the server app."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message, as the grid of the server app does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that the grid of the server app knows."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, with frames in place of arrays if the grid has a codec or a key."""
        sent = self._prepared(messages)
        ids = list(self._grid.push_messages([item.message for item in sent]))
        self._remember(sent)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived, with plain arrays."""
        return self._received(self._grid.pull_messages(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, wait for their replies, and return these with plain arrays."""
        sent = self._prepared(messages)
        replies = list(
            self._grid.send_and_receive([item.message for item in sent], timeout=timeout)
        )
        self._remember(sent)
        received = self._received(replies)
        for item in sent:  # no reply can come any more
            self._sent.pop(item.message.metadata.message_id, None)
        return received

    # Messages

    def _prepared(self, messages: Iterable[Message]) -> list[_Sent]:
        """Return messages with frames and a nonce, and the arrays that clients will decode."""
        prepared = []
        self._rounds += 1
        shared: dict[tuple[str, int], _Encoded] = {}  # by the record, which most messages share
        for message in messages:
            node, nonce = message.metadata.dst_node_id, os.urandom(16).hex()
            records: dict[str, Any] = dict(message.content)
            key = _key_of(self._key_of_node(node), "server", nonce, node)
            arrays = {}
            for name, record in message.content.array_records.items():
                encoded = shared.get((name, id(record)))
                if encoded is None or key is not None:
                    encoded = shared[name, id(record)] = self._encode(name, record, key)
                records[name], arrays[name] = encoded.frames, encoded.arrays
            settings = {"nonce": nonce, "accepted": self._accepted.get(node, _UNKNOWN)}
            if not _is_of(message, MessageType.EVALUATE):
                self._accepted.setdefault(node, "")
            records[_RECORD] = ConfigRecord(settings)
            message.content = RecordDict(records)
            self.sent_nbytes += _nbytes(message.content)
            prepared.append(_Sent(message, nonce, arrays))
        return prepared

    def _encode(self, name: str, record: ArrayRecord, key: bytes | None) -> _Encoded:
        """Return a record with frames in place of arrays if the grid has a codec or a key."""
        arrays = _to_numpy(record)
        for key_of_array, array in arrays.items():
            if array.dtype.kind in _INTEGERS:
                self._integers.add(f"{name}/{key_of_array}")
        if self._policy is None and key is None:
            return _Encoded(record, record, arrays)
        frames = {}
        for key_of_array, array in arrays.items():
            codec: CodecLike = "raw"
            path = f"{name}/{key_of_array}"
            is_compressed = array.dtype.kind == "f" and path not in self._integers
            if self._policy is not None and is_compressed:
                codec = self._policy.codec(key_of_array, array.shape, array.dtype)
            path = _VALUE + path
            seed = derive_seed(0, name=path, step=self._rounds)  # the same for all clients
            frame = encode(array, codec, seed=seed, name=path, key=key)
            frames[key_of_array] = _frame_array(array, frame)
            arrays[key_of_array] = Frame.from_bytes(frame, limits=NO_LIMITS, key=key).decode()
        return _Encoded(record, ArrayRecord(frames), arrays)

    def _key_of_node(self, node: int) -> bytes | None:
        if not callable(self._secret):
            return self._secret
        key = check_key(self._secret(node))
        if key is None:  # which would accept any reply
            raise ParameterError(f"key: must return bytes for the node {node}, not None")
        return key

    def _remember(self, sent: Iterable[_Sent]) -> None:
        now = time.time()  # a message whose time to live is over has no reply
        for key, item in [*self._sent.items()]:
            metadata = item.message.metadata
            if metadata.created_at + metadata.ttl < now:
                del self._sent[key]
        self._sent |= {item.message.metadata.message_id: item for item in sent}

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        """Return replies with plain arrays, or with the reason why one was dropped."""
        checked = []
        for reply in replies:
            sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                node = reply.metadata.src_node_id
                self.dropped.append((node, "a reply to no message of this grid"))
                continue
            if reply.has_content():
                self.received_nbytes += _nbytes(reply.content)
                try:
                    reply.content = self._plain_reply(reply.content, sent)
                except Exception as error:  # whatever a hostile reply provokes
                    reply = self._drop(sent, str(error))
            checked.append((reply, sent))
        self._drop_odd_metrics(checked)
        for reply, sent in checked:
            if reply.has_content() and reply.content.array_records:
                self._accepted[sent.message.metadata.dst_node_id] = sent.nonce
        return [reply for reply, _ in checked]

    def _drop(self, sent: _Sent, reason: str) -> Message:
        node = sent.message.metadata.dst_node_id
        self.dropped.append((node, reason))
        return _refusal(sent.message, f"dropped: {reason}")

    def _drop_odd_metrics(self, checked: list[tuple[Message, _Sent]]) -> None:
        """Drop replies whose metrics have another form than those of most replies of their kind.

        If the weights of the others are all 0, drop these, too. Strategies would give up the whole
        run because of such replies.
        """
        for kind in (MessageType.TRAIN, MessageType.EVALUATE):
            group = [
                (index, _form_of_metrics(reply.content), sent)
                for index, (reply, sent) in enumerate(checked)
                if reply.has_content() and _is_of(sent.message, kind)
            ]
            forms = Counter(form for _, form, _ in group)
            weights = []
            for index, form, sent in group:
                if form != forms.most_common(1)[0][0]:
                    checked[index] = (self._drop(sent, "other metrics than most clients"), sent)
                    continue
                records = checked[index][0].content.metric_records.values()
                weights += [x[self._weighted_by] for x in records if self._weighted_by in x]
            if not weights or any(weights):
                continue
            for index, _, sent in group:
                if checked[index][0].has_content():
                    reason = f"the metric {self._weighted_by!r} of all replies is 0"
                    checked[index] = (self._drop(sent, reason), sent)

    def _plain_reply(self, content: RecordDict, sent: _Sent) -> RecordDict:
        """Return the records of a reply with plain arrays."""
        node = sent.message.metadata.dst_node_id
        key = _key_of(self._key_of_node(node), "client", sent.nonce, node)
        records: dict[str, Any] = dict(content)
        self._check_metrics(content, records.pop(_RECORD, None), key)
        names = {name: set(record) for name, record in content.array_records.items()}
        sent_names = {name: set(arrays) for name, arrays in sent.arrays.items()}
        if _is_of(sent.message, MessageType.TRAIN) and names != sent_names:
            raise Corrupt("the reply has other arrays than the message")
        squares, elements, nbytes = 0.0, 0, 0
        for name, record in content.array_records.items():
            plain = {}
            for key_of_array, array in record.items():
                base = sent.arrays.get(name, {}).get(key_of_array)
                path = f"{name}/{key_of_array}"
                values = self._values(path, array, base, key)
                plain[key_of_array] = Array(values)
                if base is None:
                    elements, nbytes = elements + values.size, nbytes + values.nbytes
                    self._limits.check("the reply", elements, nbytes)
                elif values.dtype.kind == "f" and path not in self._integers:
                    difference = values.astype(np.float64) - base
                    squares += float((difference * difference).sum())
            records[name] = ArrayRecord(plain)
        if not math.sqrt(squares) <= self._max_norm:
            raise Corrupt(f"the update has a norm of {math.sqrt(squares):.3g}")
        return RecordDict(records)

    def _check_metrics(self, content: RecordDict, own: object, key: bytes | None) -> None:
        """Raise `Corrupt` unless metrics are finite, and have the tag in gcodec's own record."""
        if key is not None:
            tag = own.get("tag") if isinstance(own, ConfigRecord) else None
            if not isinstance(tag, bytes) or not hmac.compare_digest(
                tag, _tag_of_metrics(content, key)
            ):
                raise Corrupt("the metrics do not bear the tag of this key")
        for name, metrics in content.metric_records.items():
            if not all(np.isfinite(value).all() for value in metrics.values()):
                raise Corrupt(f"the metrics {name!r} contain NaN or Inf")
            weight = metrics.get(self._weighted_by, 0)
            if not isinstance(weight, list) and not 0 <= weight <= _MAX_WEIGHT:
                raise Corrupt(f"the metric {self._weighted_by!r} is {weight:.3g}")

    def _values(
        self, path: str, array: Array, base: np.ndarray | None, key: bytes | None
    ) -> np.ndarray:
        """Return the finite values of one array of a reply."""
        if array.stype != _STYPE:
            if key is not None:
                raise Corrupt(f"{path!r} is not a frame")
            values = array.numpy()
        else:
            limits = self._limits
            if base is not None:
                size = max(base.size, 1)
                limits = dataclasses.replace(limits, max_elements=size, max_bytes=8 * size)
            frame = Frame.from_bytes(array.data, limits=limits, key=key)
            if frame.name not in (_UPDATE + path, _VALUE + path):
                raise Corrupt(f"{path!r} has a frame of {frame.name!r}")
            if frame.name == _UPDATE + path:
                if base is None:
                    raise Corrupt(f"{path!r} is the update of an array that was not sent")
                if (frame.shape, frame.dtype) != _kind(base):
                    raise Corrupt(f"{path!r} has another shape or dtype than the message")
                values = base + frame.decode()
            else:
                values = frame.decode()
        if base is not None and np.can_cast(values.dtype, base.dtype):
            # Strategies may return wider dtypes, which models turn into their own again.
            values = values.astype(base.dtype, copy=False)
        if base is not None and _kind(values) != _kind(base):
            raise Corrupt(f"{path!r} has another shape or dtype than the message")
        if has_nonfinite(values):
            raise Corrupt(f"{path!r} contains NaN or Inf")
        return np.asarray(values)


def _refusal(message: Message, reason: str) -> Message:
    return Message(Error(_MOD_FAILED, f"gcodec.flower: {reason}"), reply_to=message)


def _is_of(message: Message, kind: str) -> bool:
    """Return whether the type of a message is of a kind, such as ``train`` or ``train.fast``."""
    return str(message.metadata.message_type).startswith(kind)


def _form_of_metrics(content: RecordDict) -> frozenset[tuple[str, frozenset[tuple[str, int]]]]:
    """Return the names of metrics in each record, with the lengths of lists and −1 for numbers."""
    forms = set[tuple[str, frozenset[tuple[str, int]]]]()
    for name, record in content.metric_records.items():
        lengths = {key: len(x) if isinstance(x, list) else -1 for key, x in record.items()}
        forms.add((name, frozenset(lengths.items())))
    return frozenset(forms)


def _kind(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Return the shape of an array, and its dtype in any byte order."""
    return array.shape, array.dtype.name


def _key_of(key: bytes | None, sender: str, nonce: str, node: int) -> bytes | None:
    """Return a key that is valid for one message in one direction."""
    if key is None:
        return None
    return hashlib.blake2b(f"gcodec.flower {sender} {nonce} {node}".encode(), key=key).digest()


def _tag_of_metrics(content: RecordDict, key: bytes) -> bytes:
    """Return the tag of all metrics of a reply."""
    metrics = {name: dict(record) for name, record in content.metric_records.items()}
    return tag_of(key, [b"gcodec.flower metrics", json.dumps(metrics, sort_keys=True).encode()])


def _plain_instruction(content: RecordDict, key: bytes | None, limits: Limits) -> RecordDict:
    """Return the records of a message to a client with plain arrays, without gcodec's record."""
    records: dict[str, Any] = dict(content)
    del records[_RECORD]
    for name, record in content.array_records.items():
        plain = {}
        for key_of_array, array in record.items():
            plain[key_of_array] = array
            if array.stype == _STYPE:
                frame = Frame.from_bytes(array.data, limits=limits, key=key)
                if frame.name != f"{_VALUE}{name}/{key_of_array}":
                    raise Corrupt(f"{key_of_array!r} has a frame of {frame.name!r}")
                plain[key_of_array] = Array(np.asarray(frame.decode()))
            elif key is not None:
                raise Corrupt(f"{key_of_array!r} is not a frame")
        records[name] = ArrayRecord(plain)
    return RecordDict(records)


def _arrays_of(content: RecordDict) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays of all records."""
    return {name: _to_numpy(record) for name, record in content.array_records.items()}


def _to_numpy(record: ArrayRecord) -> dict[str, np.ndarray]:
    arrays = {name: array.numpy() for name, array in record.items()}
    for name, array in arrays.items():
        if array.dtype.kind == "V":  # NumPy's file format keeps no dtypes of other libraries
            lost = f"{name!r} is of dtype {record[name].dtype}, which Flower does not keep"
            raise TypeError(f"{lost}: convert it to float32")
    return arrays


def _to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _frame_array(array: np.ndarray, frame: bytes) -> Array:
    return Array(dtype=str(array.dtype), shape=tuple(array.shape), stype=_STYPE, data=frame)


def _nbytes(content: RecordDict) -> int:
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())
