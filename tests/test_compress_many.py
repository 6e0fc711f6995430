"""Messages of many tensors under error feedback, in which small tensors share frames."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import DTYPES

import gcodec
from gcodec import Feedback, ParameterError
from gcodec.feedback import Transaction
from gcodec.feedback.states import _owner

SHAPES = {"a": (7, 3), "b": (64,), "empty": (0, 4), "large": (80, 60), "c": (2, 2, 2), "one": ()}
SPECS = ["sign", "minmax:bits=4", "terngrad", "qsgd:bucket=64", "ecsq:nmse=0.05", "topk", "raw"]


def gradients(step: int, names: Any = SHAPES) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {name: rng.standard_normal(SHAPES[name], np.float32) for name in names}


def state_of(feedback: Feedback) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in feedback.state_dict().items()}


@pytest.mark.parametrize("spec", SPECS)
def test_decoded_sum_plus_residual_equals_gradient_sum(spec: str) -> None:
    feedback = Feedback(spec)
    total = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    sent = copy.deepcopy(total)
    for step in range(6):
        grads = gradients(step)
        decoded = gcodec.decode_many(feedback.compress_many(grads))
        assert decoded.keys() == SHAPES.keys()
        for name, x in decoded.items():
            total[name] += grads[name]
            sent[name] += x
            left = feedback.residual(name)
            assert left.shape == SHAPES[name]
            assert np.allclose(sent[name] + left, total[name], atol=1e-4)


def test_messages_are_never_too_long_for_their_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    feedback, grads = Feedback("sign"), gradients(0)
    feedback.compress_many(grads)
    before = state_of(feedback)
    with monkeypatch.context() as patch:
        patch.setattr("gcodec.frame.members.MAX_NBYTES", 20)
        with pytest.raises(ParameterError, match=r"small tensors take \d+ bytes.*group_below"):
            feedback.compress_many(grads)
        assert state_of(feedback) == before
        decoded = gcodec.decode_many(feedback.compress_many(grads, group_below=0))
    assert decoded.keys() == grads.keys()


def test_small_tensors_share_a_frame() -> None:
    grads = gradients(0, ["a", "b", "c"])
    message = Feedback("sign").compress_many(grads)
    listed, shared = gcodec.iter_frames(message)
    whole = np.concatenate([x.reshape(-1) for x in grads.values()])
    assert json.loads(listed.decode().tobytes()) == [[n, list(SHAPES[n])] for n in grads]
    assert shared.to_bytes() == gcodec.encode(whole, "sign")


def test_tensors_from_a_size_on_and_empty_ones_have_their_own_frames() -> None:
    grads = gradients(0, ["a", "b", "empty", "c"])
    message = Feedback("sign").compress_many(grads, group_below=grads["b"].size)
    listed, _, *others = gcodec.iter_frames(message)
    assert [name for name, _ in json.loads(listed.decode().tobytes())] == ["a", "c"]
    assert [frame.name for frame in others] == ["b", "empty"]


def test_earlier_steps_of_one_tensor_change_the_seed_of_its_group() -> None:
    grads, messages = gradients(0, ["a", "b"]), set()
    for earlier in range(3):
        feedback = Feedback("terngrad", decay=0.0)
        for _ in range(earlier):
            feedback.compress("a", grads["a"])
        messages.add(feedback.compress_many(grads))
    assert len(messages) == 3


def test_large_tensors_have_the_frames_of_compress() -> None:
    one, many = Feedback("terngrad", seed=3), Feedback("terngrad", seed=3)
    for step in range(3):
        grads = gradients(step)
        frames = b"".join(one.compress(name, x) for name, x in grads.items())
        assert many.compress_many(grads, group_below=0) == frames
    assert state_of(one) == state_of(many)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_message_does_not_depend_on_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Feedback("minmax").compress_many(gradients(1))
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    assert Feedback("minmax").compress_many(gradients(1)) == expected


def test_groups_may_change_between_steps() -> None:
    feedback, steps = Feedback("sign"), [["a", "b", "c"], ["c", "a"], ["a"], ["b", "a", "c"]]
    total: dict[str, Any] = dict.fromkeys("abc", 0.0)
    for step, names in enumerate(steps * 2):
        grads = gradients(step, names)
        if step == 5:
            decoded = {"a": gcodec.decode(feedback.compress("a", grads["a"]))}
            grads = {"a": grads["a"]}
        else:
            decoded = gcodec.decode_many(feedback.compress_many(grads))
        for name, x in decoded.items():
            total[name] = total[name] + grads[name] - x
    for name, expected in total.items():
        assert np.allclose(feedback.residual(name), expected, atol=1e-5)
    counts = [int(feedback.state_dict()[f"step:{name}"]) for name in "abc"]
    assert counts == [8, 4, 5]


def test_policy_groups_by_codec() -> None:
    policy = gcodec.Policy([{"name": "a", "codec": "raw"}, {"codec": "sign"}])
    message = Feedback(policy).compress_many(gradients(0, ["a", "b", "c"]))
    names = [frame.name for frame in gcodec.iter_frames(message)]
    assert names == ["\\members", None, "a"]
    assert np.array_equal(gcodec.decode_many(message)["a"], gradients(0, ["a", "b", "c"])["a"])


def test_refused_step_changes_nothing() -> None:
    feedback = Feedback("minmax")
    feedback.compress_many(gradients(0))
    before = state_of(feedback)
    for name in ("b", "large", "one"):
        grads = gradients(1)
        grads[name].reshape(-1)[-1] = np.nan
        message = f"^grad of '{name}' holds 1 NaN or Inf, the first at flat index "
        with pytest.raises(ParameterError, match=f"{message}{grads[name].size - 1}:"):
            feedback.compress_many(grads)
        assert state_of(feedback) == before
    with pytest.raises(ParameterError, match=r"^grads=.*must be a mapping"):
        feedback.compress_many([np.ones(3)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^grads\['a'\] is of type str"):
        feedback.compress_many({**gradients(1), "a": "text"})
    with pytest.raises(ParameterError, match="'a'"):
        feedback.compress_many({**gradients(1), "a": np.ones(4, np.float32)})
    assert state_of(feedback) == before


def test_nonfinite_zero() -> None:
    feedback, grads = Feedback("minmax", nonfinite="zero"), gradients(0, ["a", "b"])
    grads["a"][0, 0] = np.inf
    decoded = gcodec.decode_many(feedback.compress_many(grads))
    assert abs(decoded["a"][0, 0]) < 0.1


def test_transaction_rolls_back() -> None:
    feedback = Feedback("sign")
    feedback.compress_many(gradients(0))
    before, steps = state_of(feedback), Transaction(feedback)
    message = steps.compress_many(gradients(1))
    assert state_of(feedback) != before
    assert {key: x.tobytes() for key, x in steps.state_dict().items()} == before
    steps.rollback()
    assert state_of(feedback) == before
    assert steps.compress_many(gradients(1)) == message
    steps.commit()


@pytest.mark.parametrize("has_transaction", [False, True])
def test_spare_arrays_do_not_accumulate(has_transaction: bool) -> None:
    feedback = Feedback("sign")
    steps = Transaction(feedback)
    for step in range(20):
        (steps if has_transaction else feedback).compress_many(gradients(step))
        steps.commit()
    assert sum(feedback._tensors.spares.counts()) <= len(SHAPES) + 2


def test_steps_of_a_group_alternate_between_two_arrays() -> None:
    feedback, arrays = Feedback("sign"), []
    for step in range(8):
        feedback.compress_many(gradients(step, ["a", "b", "c"]))
        arrays.append(feedback._tensors.states["a"].array)
    for step in range(3, 8):
        assert np.shares_memory(arrays[step - 2], arrays[step])
        assert not np.shares_memory(arrays[step - 1], arrays[step])


def test_tensors_with_their_own_frames_alternate_between_two_arrays() -> None:
    feedback, arrays = Feedback("sign"), []
    for step in range(4):
        feedback.compress_many(gradients(step, ["a", "b", "c"]), group_below=0)
        states = feedback._tensors.states
        arrays.append({states[name].array.ctypes.data for name in "abc"})
    assert arrays[0] == arrays[2] != arrays[1] == arrays[3]


def test_lent_memory_is_kept() -> None:
    feedback, ramp = Feedback("sign"), np.arange(100, dtype=np.float32)
    feedback.compress("a", ramp)
    memory = feedback.memory("a")
    before = np.array(memory.residual)
    for step in range(3):
        grads = {name: ramp * (step + 2) for name in "abc"}
        feedback.compress_many(grads, group_below=4096 * (step % 2))
        feedback.compress("d", ramp)
    assert np.array_equal(memory.residual, before)


@pytest.mark.parametrize("is_shown", [False, True])
def test_residual_of_one_tensor_of_a_group_is_kept_for_its_reader(is_shown: bool) -> None:
    feedback, names = Feedback("sign"), ["a", "b", "c"]
    feedback.compress_many(gradients(0, names))
    residual = feedback.residual("b") if is_shown else feedback.memory("b").residual
    before = np.array(residual)
    for step in range(1, 4):
        feedback.compress_many(gradients(step, names))
    assert np.array_equal(residual, before)


def test_residuals_of_earlier_groups_are_released() -> None:
    rng, feedback = np.random.default_rng(1), Feedback("sign")
    names = [f"t{number}" for number in range(8)]
    owners = []
    for step in range(60):
        members = names if step == 59 else [name for name in names if rng.random() < 0.5]
        feedback.compress_many({name: np.ones(50, np.float32) for name in members})
        owners += [weakref.ref(_owner(feedback._tensors.states[name].array)) for name in members]
    alive = {id(owner) for ref in owners if (owner := ref()) is not None}
    assert len(alive) <= 2  # the last group, and a spare array


@pytest.mark.parametrize("group_below", [0, 4096])
def test_refused_step_undoes_no_step_of_another_thread(group_below: int) -> None:
    """Each call is one step of all its names, or none."""
    feedback, sent, accepted = Feedback("mxnet-2bit:threshold=4"), list[bytes](), list[int]()
    barrier = threading.Barrier(4)

    def work(thread: int) -> None:
        barrier.wait()
        for call in range(60):
            grads = {name: np.ones(300, np.float32) for name in "abc"}
            if (thread + call) % 2:
                grads["c"][7] = np.nan
            with contextlib.suppress(ParameterError):
                sent.append(feedback.compress_many(grads, group_below=group_below))
                accepted.append(thread)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sys.setswitchinterval(interval)
    assert len(accepted) == 120
    for name in "abc":
        total = sum(gcodec.decode_many(message)[name] for message in sent)
        assert feedback.state_dict()[f"step:{name}"] == 120
        assert np.array_equal(total + feedback.residual(name), np.full(300, 120, np.float32))


def test_returned_residual_never_changes() -> None:
    feedback = Feedback("sign")
    feedback.compress_many(gradients(0))
    shown = {name: feedback.residual(name) for name in SHAPES}
    copies = {name: x.copy() for name, x in shown.items()}
    other = copy.copy(feedback)
    for step in range(1, 5):
        feedback.compress_many(gradients(step))
        other.compress_many(gradients(step))
    assert all(np.array_equal(shown[name], copies[name]) for name in SHAPES)
    assert state_of(feedback) == state_of(other)


def test_state_dict_restores_groups() -> None:
    feedback, again = Feedback("terngrad"), Feedback("terngrad")
    feedback.compress_many(gradients(0))
    again.load_state_dict(feedback.state_dict())
    assert feedback.compress_many(gradients(1)) == again.compress_many(gradients(1))


def test_tracked_tensors_have_their_own_frames() -> None:
    tracked = Feedback("sign", track=True)
    message = tracked.compress_many(gradients(0, ["a", "b"]))
    assert [frame.name for frame in gcodec.iter_frames(message)] == ["a", "b"]
    assert tracked.l1_norms("a").gradient > 0


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_small_tensors_of_one_dtype_share_a_frame(dtype: str) -> None:
    feedback, sent = Feedback("sign"), dict.fromkeys("abc", 0.0)
    for step in range(4):
        grads = gradients(step, ["a", "b", "c"])
        grads |= {name: grads[name].astype(DTYPES[dtype]) for name in "ab"}
        message = feedback.compress_many(grads)
        frames = list(gcodec.iter_frames(message))
        decoded = gcodec.decode_many(message)
        if dtype == "float32":
            assert [frame.shape for frame in frames[1:]] == [(93,)]
        else:
            assert [frame.name for frame in frames] == ["\\members", None, "c"]
            assert (frames[1].dtype, frames[1].shape) == (dtype, (85,))
        assert decoded["a"].dtype == DTYPES[dtype]
        for name, x in decoded.items():
            sent[name] = sent[name] + grads[name].astype(np.float64) - x
    for name, left in sent.items():
        assert np.allclose(feedback.residual(name), left, atol=1e-5)


def test_keys() -> None:
    message = Feedback("sign").compress_many(gradients(0), key=b"secret")
    assert gcodec.decode_many(message, key=b"secret").keys() == SHAPES.keys()
    with pytest.raises(gcodec.FormatError):
        gcodec.decode_many(message, key=b"other")


@pytest.mark.parametrize(
    "call",
    [
        lambda feedback: feedback.compress_many([("a", np.ones(3))]),
        lambda feedback: feedback.compress_many({"\\members": np.ones(3)}),
        lambda feedback: feedback.compress_many({3: np.ones(3)}),
        lambda feedback: feedback.compress_many({"a": np.ones(3)}, group_below=-1),
        lambda feedback: feedback.compress_many({"a": np.ones(3)}, key=b""),
    ],
)
def test_invalid_arguments(call: Callable[[Feedback], bytes]) -> None:
    with pytest.raises(ParameterError):
        call(Feedback("sign"))


def test_empty_message() -> None:
    assert Feedback("sign").compress_many({}) == b""
    assert gcodec.decode_many(b"") == {}


@pytest.mark.parametrize("kind", [str, Path])
def test_path_is_no_message(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.gcf"
    path.write_bytes(Feedback("sign").compress_many(gradients(0)))
    with pytest.raises(TypeError, match=r"message is of type .*: must be bytes-like"):
        gcodec.decode_many(kind(path))


# --- hostile messages ---------------------------------------------------------------------------


def members_frame(text: str) -> bytes:
    return gcodec.encode(np.frombuffer(text.encode(), np.uint8), "raw", name="\\members")


VECTOR = gcodec.encode(np.arange(4, dtype=np.float32), "raw")
NAMED = gcodec.encode(np.arange(4, dtype=np.float32), "raw", name="a")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "3", "null", "[3]", "[[]]", '[["a"]]', '[["a",[4],1]]', "[[1,[4]]]"),
        *('[["a",4]]', '[["a",[4.0]]]', '[["a",[-4]]]', '[["a",[true]]]', '[["a",[5]]]'),
        *('[["a",[2]],["a",[2]]]', '[["\\ud800",[4]]]', '[["a",[99999999999999999999999]]]'),
        *("[" * 100_000, '[["a",[4611686018427387904,0]]]', '[["a",' + str([1] * 65) + "]]"),
    ],
)
def test_damaged_lists_are_refused(text: str) -> None:
    with pytest.raises(gcodec.Corrupt):
        gcodec.decode_many(members_frame(text) + VECTOR)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (VECTOR, gcodec.Corrupt),
        (NAMED + NAMED, gcodec.Corrupt),
        (members_frame('[["b",[4]]]') + NAMED, gcodec.Corrupt),
        (members_frame('[["b",[4]]]') * 2 + VECTOR, gcodec.Corrupt),
        (members_frame('[["b",[4]]]'), gcodec.Truncated),
        (gcodec.encode(np.ones(3, np.float32), "raw", name="\\members"), gcodec.Corrupt),
        # The same holds for frames: no array has an empty shape of 2^59 or more.
        (members_frame('[["b",[4]],["c",[2305843009213693952,0]]]') + VECTOR, gcodec.Corrupt),
        (members_frame('[["b",[4]],["c",[576460752303423488,0]]]') + VECTOR, gcodec.Corrupt),
        (
            gcodec.encode(np.frombuffer(b'[["b",[4]]]', np.uint8), "lossless", name="\\members")
            + VECTOR,
            gcodec.Corrupt,
        ),
    ],
)
def test_damaged_messages_are_refused(message: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        gcodec.decode_many(message)


@pytest.mark.parametrize("members", ["", '[["w",[5]]]'])
def test_errors_of_payloads_name_the_frame_and_the_offset_in_the_message(members: str) -> None:
    listed = members_frame(members) if members else b""
    name = None if members else "w"
    frame = gcodec.Frame.from_bytes(gcodec.encode(np.ones(5, np.float32), "sign", name=name))
    padded = frame.payload._replace(data=frame.payload.data | np.uint8(1))
    damaged = gcodec.Frame(frame.codec, frame.dtype, frame.shape, padded, name).to_bytes()
    before = NAMED + listed
    number, title = (2, "") if members else (1, " 'w'")
    match = f"^frame {number}{title}: a padding bit is not zero"
    with pytest.raises(gcodec.Corrupt, match=match) as raised:
        gcodec.decode_many(before + damaged)
    assert raised.value.offset == len(before) + len(damaged) - 5  # a byte, and its checksum


def test_any_cut_is_refused_or_shorter() -> None:
    message = Feedback("sign").compress_many(gradients(0))
    whole = gcodec.decode_many(message)
    for end in range(len(message)):
        try:
            part = gcodec.decode_many(message[:end])
        except gcodec.FormatError:
            continue
        assert part.keys() < whole.keys()


def test_limits_hold_for_the_sum() -> None:
    message = b"".join(gcodec.encode(np.ones(9, np.float32), "raw", name=n) for n in "abc")
    assert len(gcodec.decode_many(message, limits=gcodec.Limits(max_elements=27))) == 3
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode_many(message, limits=gcodec.Limits(max_elements=26))


def test_number_of_tensors_is_bounded() -> None:
    """Empty tensors take memory, too, which no limit on elements bounds."""
    vector = gcodec.encode(np.empty(0, np.float32), "raw")
    parts = [
        members_frame(json.dumps([[f"{part}.{k}", [0]] for k in range(1 << 15)])) + vector
        for part in range(3)
    ]
    assert len(gcodec.decode_many(b"".join(parts[:2]))) == 65_536
    with pytest.raises(gcodec.LimitExceeded, match="more than 65536 tensors in one message"):
        gcodec.decode_many(b"".join(parts))
    grads = {str(k): np.empty(0, np.float32) for k in range(65_537)}
    with pytest.raises(ParameterError, match="grads: has 65537 tensors, must have at most 65536"):
        Feedback("raw").compress_many(grads)


def test_longest_list_is_written_and_read() -> None:
    x = np.ones(1, np.float32)
    name = "w" * (2**23 - len('[["a",[1]],["",[1]]]'))
    message = Feedback("raw").compress_many({"a": x, name: x})
    assert gcodec.decode_many(message).keys() == {"a", name}
    with pytest.raises(ParameterError, match=f"take {2**23 + 1} bytes, and must take at most"):
        Feedback("raw").compress_many({"a": x, name + "w": x})


def test_too_long_list_is_refused() -> None:
    with pytest.raises(gcodec.Corrupt, match="more than"):
        gcodec.decode_many(members_frame(" " * (2**23 + 1)) + VECTOR)
