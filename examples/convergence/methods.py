"""All compared methods by which workers agree on a mean gradient, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec.training import DGC, Communicator, PowerSGD, all_gather_mean
from gcodec.training.collectives import dense_mean

SMALL = 1024
"""Number of values below which tensors are sent uncompressed, all of them in one message."""

Gradients = Mapping[str, np.ndarray]
Average = Callable[[int, Gradients], Gradients]


class Method(NamedTuple):
    """A method.

    Attributes
    ----------
    start : callable or None
        Takes a communicator; returns a function from a step and gradients to their mean. None for
        1-bit Adam, which is an optimizer.
    spec : str
        Spec of the frames, or a description.
    feedback : {"yes", "no", ""}
        Whether the error of a step is sent later; empty for methods without error, or with
        built-in
        feedback.
    momentum_inside : bool
        Whether the method has momentum of its own, so that the optimizer must not.
    adam : bool
        Whether the optimizer is Adam.
    """

    start: Callable[[Communicator], Average] | None
    spec: str
    feedback: str = ""
    momentum_inside: bool = False
    adam: bool = False


def dense(communicator: Communicator) -> Average:
    """Average gradients without compression."""

    def average(step: int, gradients: Gradients) -> Gradients:
        means = dense_mean(communicator, list(gradients.values()))
        return dict(zip(gradients, means, strict=True))

    return average


def framed(spec: str, decay: float) -> Callable[[Communicator], Average]:
    """Average frames of a codec; a decay of 0 disables feedback."""

    def start(communicator: Communicator) -> Average:
        feedback = gcodec.Feedback(spec, decay=decay, rank=communicator.rank)

        def average(step: int, gradients: Gradients) -> Gradients:
            large, small = _split(gradients)
            frames = [feedback.compress(name, x) for name, x in large.items()]
            rest = np.concatenate([x.reshape(-1) for x in small.values()])
            frames.append(gcodec.encode(rest, "raw"))
            *means, joined = all_gather_mean(communicator, frames)
            averages = dict(zip(large, means, strict=True)) | _parted(small, joined)
            return {name: averages[name] for name in gradients}

        return average

    return start


def dgc(communicator: Communicator, momentum: float) -> Average:
    """Average by deep gradient compression: 1 % of the values, after four epochs of 20 steps."""
    method = DGC(communicator, density=0.01, momentum=momentum, min_size=SMALL)
    return lambda step, gradients: method.average(gradients, epoch=step // 20)


def power_sgd(communicator: Communicator, rank: int = 4) -> Average:
    """Average by PowerSGD with factors of the given rank."""
    method = PowerSGD(communicator, rank=rank)
    return lambda step, gradients: method.average(gradients)


def _split(gradients: Gradients) -> tuple[Gradients, Gradients]:
    large = {name: x for name, x in gradients.items() if x.size >= SMALL}
    return large, {name: x for name, x in gradients.items() if x.size < SMALL}


def _parted(small: Gradients, joined: np.ndarray) -> dict[str, np.ndarray]:
    parts, at = {}, 0
    for name, x in small.items():
        parts[name] = joined[at : at + x.size].reshape(x.shape)
        at += x.size
    return parts


FRAMED = {
    "QSGD": ("qsgd:s=15,bucket=128", 1.0),
    "TernGrad": ("terngrad", 1.0),
    "2-bit": ("mxnet-2bit:threshold=auto", 1.0),
    "CO3 fp4": ("minifloat:style=ieee,code=huffman", 0.9),
    "DCT": ("dct8:chunk=16x16,k=16", 1.0),
    "top-1 %": ("topk:ratio=0.01", 1.0),
    "ecsq": ("ecsq:bits=1", 1.0),
    "lowrank 0.1": ("lowrank:nmse=0.1", 1.0),
    "lowrank 0.3": ("lowrank:nmse=0.3", 1.0),
    "1-bit": ("sign", 1.0),
}
WITH_FEEDBACK_ALONE = {"lowrank 0.3"}


def methods(momentum: float) -> dict[str, Method]:
    """Return all methods for a task with the given momentum."""
    by_name = {"dense": Method(dense, "all-reduce")}
    for name, (spec, decay) in FRAMED.items():
        by_name[name] = Method(framed(spec, decay), spec, "yes")
        if name not in WITH_FEEDBACK_ALONE:
            by_name[f"{name}, none"] = Method(framed(spec, 0.0), spec, "no")
    by_name["DGC"] = Method(lambda c: dgc(c, momentum), "topk:ratio=0.01", "yes", True)
    by_name["PowerSGD"] = Method(power_sgd, "rank 4", "yes")
    by_name["dense Adam"] = Method(dense, "all-reduce", adam=True)
    by_name["1-bit Adam"] = Method(None, "sign, two phases", "yes", adam=True)
    return by_name
