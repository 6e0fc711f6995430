"""The payload of one message, and the selection of the shortest of several candidates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from gcodec.errors import ParameterError
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, LeadingBytes, fetch, fetch_later
from gcodec.runtime.device import beside, device_of, host
from gcodec.runtime.memory import empty_beside
from gcodec.wire.params import Scalars
from gcodec.wire.seek import SeekTable

if TYPE_CHECKING:
    from gcodec.kernels.prefix.table_choice_cuda import Gate

_T = TypeVar("_T")
_R = TypeVar("_R")


class HeaderlessBytes(NamedTuple):
    """Bytes on a device, into which the host inserts a header after the device is done.

    Attributes
    ----------
    array : (n,) uint8 array on the device
        The bytes without the header, with spare room at the end.
    lead : int
        Number of bytes of `array` that precede the header.
    header : callable
        Returns the header, a uint8 array on the host, once all deferred numbers are known.
    nbits : Deferred
        Number of valid bits in `array`.
    """

    array: Array
    lead: int
    header: Callable[[], np.ndarray]
    nbits: Deferred

    def joined(self, array: Array, nbytes: int) -> Array:
        """Return the first bytes of `array`, or of its copy on the host, with the header."""
        header = beside(self.header(), array)
        start, end = self.lead, self.lead + header.size
        out = empty_beside(max(nbytes, end), np.uint8, array)
        out[:start], out[start:end] = array[:start], header
        out[end:] = array[start : start + out.size - end]
        return out[:nbytes]


def array_of(data: Array | HeaderlessBytes) -> Array:
    """Return the array of the data of a payload, without a header that is still missing."""
    return data.array if type(data) is HeaderlessBytes else data


class MissedTarget(NamedTuple):
    """A target of the encoder that a tensor cannot meet, and the nearest value that it can.

    Attributes
    ----------
    parameter : str
        Name of the codec's parameter, such as "bits".
    target : float
        Value of that parameter.
    reached : float
        Nearest value that the tensor can have; for bits an estimate.
    """

    parameter: str
    target: float
    reached: float

    def __str__(self) -> str:
        """Return ``parameter=target: the nearest is …``."""
        return f"{self.parameter}={self.target!r}: the nearest is {self.reached:.3g}"


class Payload(NamedTuple):
    """The published bytes of one message, and the values that the original system keeps elsewhere.

    Attributes
    ----------
    codec : Codec
        The codec, with every ``auto`` resolved.
    scalars : dict of str to number
        Values that belong to this message alone, such as a resolved threshold.
    data : (ceil(nbits / 8),) uint8 array
        The bytes, on the device of the tensor if the codec works there. Before `resolved`, the
        array may be longer, or a `HeaderlessBytes`.
    nbits : int
        Size of the payload in bits, including its own norms, tables and padding.
    seek : SeekTable or None
        Positions of the blocks of the bit string.
    missed : MissedTarget or None
        The target that the encoder could not meet. None if the encoder met all targets, and for a
        payload that was read, since bytes do not store targets.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> codec = gcodec.parse("mxnet-2bit:threshold=0.25")
    >>> payload = codec.encode(np.array([0.5, -0.5, 0.0], np.float32))
    >>> payload.nbits, payload.tobytes().hex()
    (32, 'e0000000')
    >>> codec.decode(payload, 3)
    array([ 0.25, -0.25,  0.  ], dtype=float32)
    """

    codec: Any
    scalars: Scalars
    data: np.ndarray
    nbits: int
    seek: SeekTable | None = None
    missed: MissedTarget | None = None

    def __repr__(self) -> str:
        """Return the codec and the size."""
        nbits: Any = self.nbits
        size = "unresolved" if type(nbits) is Deferred else f"{nbits:,} bits"
        return f"<Payload: {self.codec}, {size}>"

    def tobytes(self) -> bytes:
        """Return the bytes that the paper or system defines."""
        return host(self.data).tobytes()

    def resolved(self, *, with_data: bool = False) -> Payload:
        """Return the payload with its numbers on the host, and with its data there on demand.

        Everything is fetched in one wait, with what the call has deferred until then; see
        `gcodec.runtime.deferred`.
        """
        if type(self.data) is np.ndarray and not self._deferred():
            nbytes = -(-self.nbits // 8)
            if self.data.dtype != np.uint8 or self.data.size != nbytes:
                facts = f"{self.data.size} elements of {self.data.dtype} for {self.nbits} bits"
                raise ParameterError(f"payload.data: has {facts}: must have {nbytes} of uint8")
            return self
        return Selection([self]).resolved(with_data=with_data)

    def when_resolved(self, use: Callable[[Payload], object]) -> None:
        """Call a function with the resolved payload; see `Selection.when_resolved`."""
        Selection([self]).when_resolved(use)

    def _deferred(self) -> list[Deferred]:
        return [n for n in (*self.scalars.values(), self.nbits, self.seek) if type(n) is Deferred]

    def _with_words(self, words: dict[int, np.ndarray], array: Array) -> Payload:
        """Return the payload with its numbers, read from their words by id, and with this data."""

        def number(n: object) -> Any:
            return n.resolve(words[id(n.words)]) if type(n) is Deferred else n

        scalars = {key: number(n) for key, n in self.scalars.items()}
        is_deferred = any(type(n) is Deferred for n in self.scalars.values())
        codec = self.codec.of_message(scalars) if is_deferred else self.codec
        nbits = number(self.nbits)
        nbytes = -(-nbits // 8)
        data: Any = self.data
        data = data.joined(array, nbytes) if type(data) is HeaderlessBytes else array[:nbytes]
        return Payload(codec, scalars, data, nbits, number(self.seek), self.missed)

    def _fetched_data(self) -> Array | LeadingBytes:
        """Return the request by which the host fetches the data."""
        data: object = self.data
        nbits: object = data.nbits if type(data) is HeaderlessBytes else self.nbits
        if type(nbits) is not Deferred or nbits.bits is None:
            return data
        return LeadingBytes(array_of(data), *nbits.bits)


@dataclass(frozen=True, eq=False)
class Selection(Generic[_T]):
    """Candidate payloads, or the strings that become payloads, one of which is the message.

    On the host there is only one candidate: the selected one. On a device there are several, and
    the host learns with the data of the message which of them the kernels wrote.

    Attributes
    ----------
    candidates : sequence
        Payloads or strings. Several of them may share their data.
    select : callable
        Returns the message, given a function that returns the candidate of an index with its
        numbers and data on the host. Default: the only candidate.
    numbers : tuple of Deferred
        Numbers that `select` reads; they are fetched with those of the candidates.
    """

    candidates: Sequence[_T]
    select: Callable[[Callable[[int], Payload]], Payload] = lambda payload: payload(0)
    numbers: tuple[Deferred, ...] = ()

    def map(self, payload_of: Callable[[_T], _R]) -> Selection[_R]:
        """Return the same selection among what a function returns for each candidate."""
        payloads = [payload_of(candidate) for candidate in self.candidates]
        return Selection(payloads, self.select, self.numbers)

    def resolved(self: Selection[Payload], *, with_data: bool = False) -> Payload:
        """Return the selected payload; see `Payload.resolved`."""
        requests = self._requests(with_data)
        if not requests:
            only = self.candidates[0]  # on a device, its data may be longer
            return only if type(only.data) is np.ndarray else only._with_words({}, only.data)
        arrays = fetch(self._device, *requests.values())
        return self._selected(dict(zip(requests, arrays, strict=True)))

    def when_resolved(self: Selection[Payload], use: Callable[[Payload], object]) -> None:
        """Call a function with the selected payload and its data: now, or before the call ends.

        See `gcodec.runtime.deferred`.
        """
        requests, arrays = self._requests(with_data=True), {}
        if not requests:
            use(self.candidates[0])

        def take(key: int, array: np.ndarray) -> None:
            arrays[key] = array
            if len(arrays) == len(requests):
                use(self._selected(arrays))

        for key, request in requests.items():
            fetch_later(self._device, request, functools.partial(take, key))

    @property
    def _device(self: Selection[Payload]) -> Any:
        return device_of(array_of(self.candidates[0].data), *self._deferred())

    def _deferred(self: Selection[Payload]) -> list[Deferred]:
        return [*self.numbers, *(n for each in self.candidates for n in each._deferred())]

    def _requests(self: Selection[Payload], with_data: bool) -> dict[int, object]:
        """Return what the host fetches for the selection, by the id of the words or the data."""
        requests: dict[int, object] = {id(each.words): each.words for each in self._deferred()}
        if with_data and device_of(array_of(self.candidates[0].data)) is not None:
            requests |= {id(each.data): each._fetched_data() for each in self.candidates}
        return requests

    def _selected(self: Selection[Payload], arrays: dict[int, np.ndarray]) -> Payload:
        """Return the selected payload, given what was fetched."""
        for number in self.numbers:
            number.resolve(arrays[id(number.words)])

        def payload(index: int) -> Payload:
            chosen = self.candidates[index]
            return chosen._with_words(arrays, arrays.get(id(chosen.data), array_of(chosen.data)))

        return self.select(payload)


@dataclass(frozen=True, eq=False)
class Candidate(Generic[_T]):
    """A string that an encoder may write, and its price.

    Attributes
    ----------
    nbits : int or Deferred
        Price in bits, without `more_nbits`; an estimate for rANS. A `Deferred` has an int64 word.
    write : callable
        Writes the string. Its argument is None if the string is selected, or a `Gate` if a device
        selects: the kernels then write nothing unless the gate is open.
    more_nbits : int
        Bits of the price that `nbits` lacks.
    count : int or Deferred
        Number of symbols or bits that an open gate lets through; see `Gate`.
    blank : callable, optional
        Returns the string with zeros in place of its bits, for `write_shortest` with ``sized``.
        None if its size is not known before it is written.
    """

    nbits: int | Deferred
    write: Callable[[Gate | None], _T]
    more_nbits: int = 0
    count: int | Deferred = 0
    blank: Callable[[], _T] | None = None

    @property
    def price(self) -> int:
        """The whole price in bits, on the host."""
        return int(self.nbits) + self.more_nbits


class EstimatedCandidate(NamedTuple):
    """A string whose exact length is known only after it is written.

    Attributes
    ----------
    write_below : callable
        Writes the string on the host if it has fewer than a number of bits; else returns None. It
        is called again with a larger number if the first one was only a lower bound.
    plan : callable, optional
        Plans the string on a device, and returns a `Candidate` whose price is an estimate. None if
        no device writes strings of this codec.
    min_nbits : int
        The string is longer than this.
    lead_nbits : int
        Bits of the written string that its price does not include.
    """

    write_below: Callable[[int], Any]
    plan: Callable[[], Candidate[Any]] | None = None
    min_nbits: int = 0
    lead_nbits: int = 0


def write_shortest(
    candidates: Sequence[Candidate[_T]],
    estimated: EstimatedCandidate | None = None,
    *,
    bounded: Sequence[tuple[int, Callable[[], Candidate[_T]]]] = (),
    sized: bool,
) -> Selection[_T]:
    """Select and write the shortest of several strings, the first of equals.

    The host compares prices and writes one string. On a device a kernel compares them, since the
    host would have to wait for the prices before it could launch the writers. The estimated string
    is selected if both its estimate and its final length are below all prices. A device whose
    kernel finds such an estimate therefore also writes the best of the other strings. The host
    prices no other string if the estimated one is below all of their lower bounds.

    Parameters
    ----------
    candidates : sequence of Candidate
        Not empty.
    estimated : EstimatedCandidate, optional
        A further string, the last of equals.
    bounded : sequence of (int, callable)
        Further strings on the host, which follow the candidates: a lower bound of each price, and
        a function that returns the candidate. It is called only if the string may be the shortest.
    sized : bool
        Whether the caller needs only the size, as `Codec._sized` does: the result on the host may
        then be a `Candidate.blank` string.
    """
    if len(candidates) == 1 and estimated is None and not bounded and not sized:
        return Selection([candidates[0].write(None)])
    device = device_of(*(candidate.nbits for candidate in candidates))
    if device is None:
        return Selection([_shortest_on_host(candidates, estimated, bounded, sized)])
    assert not bounded, "a device prices all candidates"
    strings = list(candidates)
    if estimated is not None:
        assert estimated.plan is not None
        strings.append(estimated.plan())
    from gcodec.kernels.prefix.table_choice_cuda import choose_string

    gates, verdict = choose_string(
        device,
        [(string.nbits, string.more_nbits, string.count) for string in strings],
        None if estimated is None else estimated.min_nbits,
    )

    def select(payload: Callable[[int], Payload]) -> Payload:
        selected, shortest, nbits = verdict.value.tolist()
        chosen = payload(selected)
        if estimated is not None and selected == len(candidates):
            return chosen if chosen.nbits < estimated.lead_nbits + nbits else payload(shortest)
        return chosen

    written = [string.write(gate) for string, gate in zip(strings, gates, strict=True)]
    return Selection(written, select, (verdict,))


def _shortest_on_host(
    candidates: Sequence[Candidate[_T]],
    estimated: EstimatedCandidate | None,
    bounded: Sequence[tuple[int, Callable[[], Candidate[_T]]]],
    sized: bool,
) -> _T:
    """Return the shortest string; see `write_shortest`."""
    known = len(candidates)
    floors = [*(candidate.price for candidate in candidates), *(floor for floor, _ in bounded)]
    string: _T | None = None if estimated is None else estimated.write_below(min(floors))
    if string is not None:
        return string
    least, shortest = (math.inf, 0), None
    for number in sorted(range(len(floors)), key=floors.__getitem__):
        if floors[number] > least[0]:
            break
        candidate = candidates[number] if number < known else bounded[number - known][1]()
        if (candidate.price, number) < least:
            least, shortest = (candidate.price, number), candidate
    assert shortest is not None
    if estimated is not None and shortest.price > min(floors):
        string = estimated.write_below(shortest.price)
    if string is None and sized and shortest.blank is not None:
        string = shortest.blank()
    return shortest.write(None) if string is None else string
