"""Random calls of error feedback agree bit for bit with a model that keeps whole residuals."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import strategies as gs
from sweeps import LONG

import gcodec
from gcodec import Feedback, Frame, ParameterError, Policy
from gcodec.codec import Codec, Symbols
from gcodec.feedback import Memory, Transaction, derive_seed

SHAPES = {"0": (0, 3), "1": (1,), "d": (), "2": (2,), "p": (1, 2), "m": (9, 4), "n": (300,)}
SPECS = ["raw", "lossless", "lossless:mode=fast", "topk:ratio=1", "minmax:bucket=2", "minmax"]
SPECS += ["sign", "terngrad", "qsgd:bucket=64", "ecsq:nmse=0.05", "powersgd", "topk:ratio=0.3"]
SPECS += ["raw:dtype=float16", "minmax:bits=3", "sign:scale=none", "mxnet-2bit:threshold=0.5"]
POLICIES = [Policy({"[01mp]": "lossless", "*": "sign"}), Policy({"[2n]": "minmax", "*": "raw"})]
CODECS = [*map(gcodec.parse, SPECS), *POLICIES]
COPIES = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


class State(NamedTuple):
    residual: np.ndarray
    step: int = 0
    prior: tuple[Codec, Symbols] | None = None


class Model:
    def __init__(self, decay: float, nonfinite: str, states: dict[str, State]) -> None:
        self.decay, self.nonfinite, self.states = decay, nonfinite, states
        self.codec: Any = None

    def codec_of(self, name: str, x: np.ndarray) -> Codec:
        if not isinstance(self.codec, Policy):
            return self.codec
        return self.codec.codec(name, x.shape, x.dtype)

    @np.errstate(invalid="ignore", over="ignore")
    def step(
        self, codec: Codec, title: str, name: str | None, x: np.ndarray, key: Any, before: State
    ) -> tuple[bytes, State]:
        """Return the frame of a tensor or a group, and the state after it."""
        is_exact = codec.contraction(x.size) == 1 and not before.residual.any()
        is_lossless, dtype = codec.name == "lossless", str(x.dtype)
        v = x if is_exact and is_lossless else x.astype(np.float32)
        if self.nonfinite == "zero":
            v = np.where(np.isfinite(v), v, 0).astype(v.dtype)
        if not is_exact:
            v = v + np.float32(self.decay) * before.residual
        passes = self.nonfinite == "propagate" and not codec.refuses_nonfinite
        passes |= is_exact and is_lossless
        if not (passes or np.isfinite(v).all()):
            raise ParameterError("NaN or Inf")
        seed = derive_seed(5, name=title, step=before.step, rank=2)
        last = before.prior
        prior = last[1] if last is not None and type(last[0]) is type(codec) else None
        sent = v.astype(x.dtype) if is_lossless else v
        payload = codec.encode(sent, seed=seed, prior=prior)
        frame = Frame(payload.codec, dtype, x.shape, payload, name, key).to_bytes()
        if codec.uses_prior:
            last = codec, codec.quantize(sent, seed=seed, prior=prior)
        decoded = gcodec.decode(frame, key=key).astype(np.float32)
        left = np.zeros(x.shape, np.float32) if is_exact else v - decoded
        return frame, State(left, before.step + 1, last)

    def compress(self, grads: dict[str, np.ndarray], below: int, key: Any) -> bytes:
        before, after, message = {}, dict[str, State](), b""
        groups = dict[tuple[int, str], list[str]]()
        for name, x in grads.items():
            before[name] = self.states.get(name, State(np.zeros(x.shape, np.float32)))
            if 0 < x.size < below:
                groups.setdefault((id(self.codec_of(name, x)), str(x.dtype)), []).append(name)
        for names in groups.values():
            if len(names) > 1:
                x, residual = (
                    np.concatenate([array.reshape(-1) for array in arrays])
                    for arrays in ([grads[n] for n in names], [before[n].residual for n in names])
                )
                joined = State(residual, max(before[n].step for n in names))
                codec = self.codec_of(names[0], grads[names[0]])
                frame, group = self.step(codec, "\0".join(names), None, x, key, joined)
                members = json.dumps([[n, SHAPES[n]] for n in names], separators=(",", ":"))
                listed = np.frombuffer(members.encode(), np.uint8)
                message += gcodec.encode(listed, "raw", name="\\members", key=key) + frame
                ends = list(itertools.accumulate(grads[n].size for n in names))[:-1]
                for n, left in zip(names, np.split(group.residual, ends), strict=True):
                    after[n] = State(left.reshape(SHAPES[n]), before[n].step + 1)
        for n in [name for name in grads if name not in after]:
            codec = self.codec_of(n, grads[n])
            frame, after[n] = self.step(codec, n, n, grads[n], key, before[n])
            message += frame
        self.states |= after
        return message


class World(NamedTuple):
    feedback: Feedback
    model: Model
    steps: Transaction
    recorded: dict[str, State | None]  # states before the transaction
    memories: list[tuple[str, Memory, State | None]]

    def check(self) -> None:
        both = self.model.states | self.recorded
        committed = {name: state for name, state in both.items() if state is not None}
        for owner, states in ((self.feedback, self.model.states), (self.steps, committed)):
            actual = owner.state_dict()
            assert {key[5:] for key in actual if key.startswith("step:")} == states.keys()
            for name, (residual, step, prior) in states.items():
                assert gs.same_bits(actual[f"residual:{name}"], residual)
                assert actual[f"step:{name}"] == step
                assert (f"prior:{name}" in actual) == (prior is not None)


def gradient(rng: np.random.Generator, name: str, dtype: str) -> np.ndarray:
    x = rng.standard_normal(SHAPES[name]) * rng.choice([1, 1, 1, 1, 0, 1e-5, 1e-41])
    x = np.asarray(x * (1e-300 if dtype == "float64" and rng.random() < 0.1 else 1))
    for value, share in ((-0.0, 0.1), (np.nan, 0.002), (np.inf, 0.002)):
        x[rng.random(x.shape) < share] = value
    x = x.astype(gs.DTYPES[dtype])
    return np.repeat(x, 2, -1)[..., ::2] if x.ndim and rng.random() < 0.3 else x


def outcome(call: Callable[..., bytes], *arguments: Any, **options: Any) -> bytes | None:
    try:
        return call(*arguments, **options)
    except ParameterError:
        return None


def agree(actual: bytes | None, expected: bytes | None, key: bytes | None = None) -> bool:
    """Return whether messages are equal, except for the bits of NaN, or both were refused."""
    if actual == expected or actual is None or expected is None:
        return actual == expected
    ours, theirs = (gcodec.decode_many(message, key=key) for message in (actual, expected))
    has_nan = any(np.isnan(x.astype(np.float32)).any() for x in theirs.values())
    return has_nan and all(gs.same_bits(ours[name], x) for name, x in theirs.items())


@pytest.mark.parametrize("start", range(300 if LONG else 12))
def test_random_calls_agree_with_a_model(start: int) -> None:
    rng = np.random.default_rng(start)
    nonfinite, decay = ("raise", "zero", "propagate")[start % 3], float(rng.choice([0, 0.5, 1]))
    first = Feedback("raw", decay=decay, seed=5, rank=2, nonfinite=nonfinite)
    worlds = [World(first, Model(decay, nonfinite, {}), Transaction(first), {}, [])]
    shown: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(200):
        world = worlds[rng.integers(len(worlds))]
        feedback, model, steps, recorded, memories = world
        if model.codec is None or rng.random() < 0.3:
            model.codec = feedback.codec = CODECS[rng.integers(len(CODECS))]
        names = [str(n) for n in rng.permutation(list(SHAPES))[: rng.integers(1, 8)]]
        dtypes = rng.choice(list(gs.DTYPES), len(names), p=[0.7, 0.1, 0.1, 0.1])
        grads = {n: gradient(rng, n, str(d)) for n, d in zip(names, dtypes, strict=True)}
        name, key = names[0], rng.choice([None, b"secret"])
        operation = rng.integers(14)
        if operation < 7:
            below, caller = int(rng.choice([0, 20, 4096])), feedback
            if rng.random() < 0.4:
                caller = steps
                for n in names:
                    recorded.setdefault(n, model.states.get(n))
            actual = outcome(caller.compress_many, grads, group_below=below, key=key)
            assert agree(actual, outcome(model.compress, grads, below, key), key)
        elif operation == 7:
            with ThreadPoolExecutor(3) as threads:
                sent = threads.map(partial(outcome, feedback.compress), grads, grads.values())
                assert all(
                    agree(frame, outcome(model.compress, {n: x}, 0, None))
                    for frame, (n, x) in zip(sent, grads.items(), strict=True)
                )
        elif operation == 8:
            memories.append((name, feedback.memory(name), model.states.get(name)))
        elif operation == 9 and memories:
            name, memory, state = memories[rng.integers(len(memories))]
            target = worlds[rng.integers(len(worlds))]
            target.feedback.restore(name, memory)
            target.model.states.pop(name, None)
            target.model.states |= {} if state is None else {name: state}
        elif operation == 10 and memories:
            name, memory, _ = memories.pop(rng.integers(len(memories)))
            feedback.forget(name, memory)
        elif operation == 11:
            if rng.random() < 0.5:
                steps.commit()
            else:
                steps.rollback()
                for n, state in recorded.items():
                    model.states.pop(n, None)
                    model.states |= {} if state is None else {n: state}
            recorded.clear()
        elif operation == 12:
            twin, states = COPIES[rng.integers(3)](feedback), dict(model.states)
            if rng.random() < 0.3:
                twin.load_state_dict(feedback.state_dict())
            other = Model(decay, nonfinite, states)
            worlds = [*worlds[-2:], World(twin, other, Transaction(twin), {}, [])]
            other.codec = model.codec
        elif operation == 13 and name in model.states:
            shown.append((feedback.residual(name), model.states[name].residual))
        world.check()
    assert all(gs.same_bits(*pair) for pair in shown)


@pytest.mark.parametrize("forgets_before", [False, True])
def test_copies_and_their_original_release_memories_of_their_own(forgets_before: bool) -> None:
    feedback, x = Feedback("mxnet-2bit:threshold=4"), np.ones(5, np.float32)
    feedback.compress("w", x)
    memory = feedback.memory("w")
    if forgets_before:
        feedback.forget("w", memory)
    twin = copy.copy(feedback)
    lent, user = twin.memory("w"), feedback
    if not forgets_before:
        twin.forget("w", lent)
        lent, user = memory, twin
    user.compress("w", x)
    user.restore("w", lent)
    assert gs.same_bits(user.residual("w"), x)
