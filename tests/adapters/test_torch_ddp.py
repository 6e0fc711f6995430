"""The DDP hook in real processes, which communicate through gloo over the loopback device."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_processes import run_ranks

import gcodec
from gcodec.wire.primitives import Reader

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCENARIOS = (
    *("exact", "exact_at_random", "exact_by_default", "first_step", "no_sync", "nonfinite"),
    *("resume", "wrapped", "policies"),
    *("scaler", "scaler_of_half", "under_way", "keys"),
    *("layouts", "sparse", "complex_parameters", "arguments", "early", "mismatch"),
    *("communicator", "stalled"),
)
COMPRESSED = ["first.weight", "last.weight", "second.weight"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Return a function that returns the results of both ranks for a scenario."""
    results = run_ranks("ddp_ranks.py", 2, tmp_path_factory.mktemp("pair"), *SCENARIOS)
    return lambda scenario: [rank[scenario] for rank in results if scenario in rank]


def check_exact(seen: list[Any]) -> None:
    for rank in seen:
        assert rank["wrong"] == []
        assert rank["kept"] == dict.fromkeys(rank["kept"], True)
        assert rank["sent"] < 5 * 4 * rank["values"]
        names = [f"{kind}:{name}" for kind in ("residual", "step") for name in COMPRESSED]
        keys = [key for key in rank["keys"] if not key.startswith("prior:")]
        assert keys == sorted([*names, "iteration", "rank", "size"])
        assert rank["digest"] == seen[0]["digest"]
        assert rank["received"] == sum(other["sent"] for other in seen) - rank["sent"]
        assert min(rank["coding"]) > 0
        # Five compressed steps, in each of which the used layers have gradients.
        assert 0 < rank["gradient_nbytes"] <= 5 * 4 * rank["values"]
        assert rank["pays_below"] == rank["break_even"] >= 0


@pytest.mark.parametrize("scenario", ["exact", "exact_at_random", "exact_by_default"])
def test_gradients_equal_mean_of_feedback_per_rank(
    pair: Callable[[str], list[Any]], scenario: str
) -> None:
    check_exact(pair(scenario))


def test_hook_made_before_the_process_group(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("early"):
        seen = {"equal": True, "iteration": 4, "ranks": 2, "size": 2, "pays_below": "nan"}
        assert rank == seen


def test_first_compressed_step_is_no_part_of_break_even(
    pair: Callable[[str], list[Any]],
) -> None:
    """It compiles or loads kernels."""
    text = "<DdpState: topk:ratio=0.05, step 1, 0 bytes sent for 0 of gradients>"
    assert pair("first_step") == [{"first": True, "second": True, "text": text}] * 2


def test_dead_rank_fails_the_others(tmp_path: Path) -> None:
    scenarios = "exact_at_random", "communicator", "communicator_foreign", "killed"
    seen = run_ranks("ddp_ranks.py", 4, tmp_path, *scenarios)
    check_exact([rank["exact_at_random"] for rank in seen])
    for rank in seen:
        check_communicator(rank["communicator"], 4)
        assert rank["communicator_foreign"].pop("parent")
        check_communicator(rank["communicator_foreign"], 4)
    left = [rank["killed"] for rank in seen if "killed" in rank]
    assert len(left) == 3
    for rank in left:
        first, second = rank["errors"]
        assert "ddp_hook: step 2: " in first
        assert second.startswith("the exchange failed before, so a run that goes on needs ")
        assert rank["seconds"] < 45  # less than the timeout of 60 seconds


def test_no_sync_accumulates_gradients(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("no_sync")
    assert first == second
    assert first["close"]


def test_infinite_gradient_keeps_residuals(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("nonfinite")
    assert first == second
    assert first["infinite"] == ["second.weight"]
    assert first["same"]
    assert first["moved"]
    assert first["finite"]


def test_steps_skipped_by_loss_scaler_change_no_state(
    pair: Callable[[str], list[Any]],
) -> None:
    first, second = pair("scaler")
    assert first == second
    assert first["wrong"] == first["changed"] == []
    assert first["skipped"] == [True] * 12


def test_float16_overflow_changes_no_state(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("scaler_of_half"):
        assert rank == {"finite": [True, False, True], "changed": [True, False, True]}


def test_state_dict_during_a_step(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("under_way"):
        assert rank == {"middle": True, "end": False, "broken": True, "again": True}


def test_authenticated_messages(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("keys"):
        assert (rank["same"], rank["more"], rank["shown"]) == (True, True, False)
        assert (rank["alone"], rank["replayed"], rank["pays_below"]) == (1, 0, "nan")
        assert "does not bear the tag of this key" in rank["wrong"]
        expected = "ddp_hook: the ranks differ: keyed=True on rank 0, False on rank 1"
        assert rank["missing"] == expected
        assert rank["refused"] == "key is of type str: must be bytes, from 1 to 64 of them"


def test_checkpoint_resumes_bit_exactly(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("resume")
    for named in ("True", "False"):
        whole, again, half = first[named]
        assert whole == again != half
        assert first[named] == second[named]
    assert first["refused"] == (
        "state['rank']=7: must be 0, because each rank has its own state; "
        "load_state_dicts takes the states of all ranks"
    )
    shape = "state['residual:last.weight'].shape=(2, 3): must be (3, 40), as in the model"
    other = "state='residual:other': must be the residual of a parameter of the model"
    assert first["foreign"] == [other, shape, shape]
    assert first["forked"] == second["forked"] == 0
    [warning] = first["warned"]
    assert warning.startswith("ddp_hook: the state has no residuals, so feedback starts anew;")


def test_compiled_and_copied_model_with_a_group_of_its_own(
    pair: Callable[[str], list[Any]],
) -> None:
    assert pair("wrapped") == 2 * [{"size": 1, "same": True, "refused": None, "steps": 3}]


def test_policies_dense_tensors_and_bfloat16(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("policies")
    assert first == second
    assert first["residuals"] == ["residual:second.weight"]
    assert first["plain"] == ["iteration", "rank", "size"]
    message = "name='first.weight': must be one that was compressed before"
    assert first["refused"] == [message, message]
    assert first["owed"] == [40, 48]


def test_gradients_in_the_layout_of_parameters(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("layouts"):
        assert rank == {"strided": True, "owed": True, "close": [True] * 8}


def test_sparse_gradients(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("sparse"):
        assert rank == {"close": [True] * 3, "same": True}


def test_complex_gradients(pair: Callable[[str], list[Any]]) -> None:
    """DDP passes real and imaginary parts in the bucket, but gradients of half its size."""
    assert pair("complex_parameters") == 2 * [{"equal": [True, True]}]


def test_invalid_arguments_are_refused(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("arguments"):
        assert rank == {"wrong": [], "ranks": [0, 1]}


def test_mismatched_settings_are_refused(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("mismatch"):
        assert rank["error"] == "ddp_hook: the ranks differ: seed=3 on rank 0, 4 on rank 1"
        assert rank["loaded"] == "ddp_hook: the ranks differ: iteration=0 on rank 0, 1 on rank 1"


def test_unresponsive_rank_times_out(pair: Callable[[str], list[Any]]) -> None:
    waiting, _ = pair("stalled")
    assert "ddp_hook: step 1: " in waiting["error"]
    assert 3 < waiting["seconds"] < 30


@pytest.mark.parametrize("rank", [0, 1])
def test_communicator(pair: Callable[[str], list[Any]], rank: int) -> None:
    check_communicator(pair("communicator")[rank], 2)


@pytest.mark.gpu
def test_nccl_communicator(tmp_path: Path) -> None:
    import torch

    size = min(torch.cuda.device_count(), 2)
    if not size or not torch.distributed.is_nccl_available():
        pytest.skip("there is no CUDA device, or torch has no NCCL")
    for rank in run_ranks("ddp_ranks.py", size, tmp_path, "communicator_nccl"):
        check_communicator(rank["communicator_nccl"], size)


def check_communicator(seen: Any, size: int) -> None:
    third = 1 / 3
    expected = [[size * (i + 3 * j) * third + sum(range(size)) for i in range(3)] for j in (0, 1)]
    assert seen.pop("sum") == [pytest.approx(row) for row in expected]
    assert seen == {
        "protocol": True,
        "gather": [True] * 4,
        "empty": True,
        "to": True,
        "exchange": True,
        "itself": True,
        "broadcast": [True] * size,
        "refused": [f"{name}={size}: must be a rank below {size}" for name in ("to", "root")],
    }


SPECS = ("mxnet-2bit", "sign", "qsgd", "topk:ratio=0.1", "powersgd", "minifloat:code=none")


@pytest.mark.parametrize("spec", SPECS)
def test_rollback_restores_arrays_without_copies(spec: str) -> None:
    """Roll back after Inf on another rank or a lost message, and expect the previous arrays."""
    from gcodec.torch.messages import BucketCoder, Key, Part

    codec, rng = gcodec.parse(spec), np.random.default_rng(3)
    coders = [
        BucketCoder(gcodec.Feedback(spec, seed=1, rank=rank), 1, rank, Key(None))
        for rank in range(2)
    ]
    plain = [gcodec.Feedback(spec, seed=1, rank=rank) for rank in range(2)]

    def gradients() -> list[list[Part]]:
        return [
            [Part(name, rng.standard_normal((40, 30), np.float32), codec) for name in "ab"]
            for _ in coders
        ]

    def step(infinite: str = "") -> None:
        """Exchange two buckets, with Inf in the named tensors of one rank."""
        for _ in range(2):
            parts = gradients()
            for name in infinite:
                parts[1]["ab".index(name)].values[3, 3] = np.inf
            for feedback, bucket in zip([] if infinite else plain, parts, strict=False):
                for part in bucket:
                    feedback.compress(part.name, part.values)
            pairs = list(zip(coders, parts, strict=True))
            messages = [coder.encode(bucket, 0) for coder, bucket in pairs]
            for coder, bucket in pairs:
                coder.average(bucket, messages)
                finite = [bool(np.isfinite(part.values).all()) for part in bucket]
                assert finite == [name not in infinite for name in "ab"]
        for coder in coders:
            coder.rollback() if infinite else coder.commit()

    def residuals() -> dict[str, np.ndarray]:
        arrays = {}
        for rank, coder in enumerate(coders):
            assert coder.feedback is not None
            for name in "ab":
                arrays[f"{rank}{name}"] = coder.feedback._tensors.states[name].array
        return arrays

    for _ in range(3):
        step()
    for infinite in ("a", "b", "", "ab", "a"):
        before = residuals()
        bits = {key: array.tobytes() for key, array in before.items()}
        if infinite:
            step(infinite)
        else:  # no message arrives
            for coder, bucket in zip(coders, gradients(), strict=True):
                coder.encode(bucket, 0)
                coder.rollback()
        for key, array in residuals().items():
            assert array is before[key]
            assert array.tobytes() == bits[key]
        step()
    for coder, feedback in zip(coders, plain, strict=True):
        assert coder.feedback is not None
        actual, expected = coder.feedback.state_dict(), feedback.state_dict()
        assert {key: value.tobytes() for key, value in actual.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }
        # One spare array for each tensor of a step, and one that a step has read twice.
        assert coder.feedback._tensors.spares.counts() == [3]


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_tensor_that_is_dense_now_sends_its_residual(decay: float) -> None:
    """As after a resumption with another `exclude`; a gradient of zeros sends nothing."""
    from gcodec.torch.messages import BucketCoder, Key, Part

    rng, sign = np.random.default_rng(8), gcodec.parse("sign")
    coder = BucketCoder(gcodec.Feedback(sign, decay=decay), 0, 0, Key(None))

    def mean(values: np.ndarray, codec: Any) -> np.ndarray:
        part = Part("w", values.copy(), codec)
        coder.average([part], [coder.encode([part], 0)])
        return part.values

    first, second = (rng.standard_normal((9, 7), np.float32) for _ in range(2))
    residual = first - mean(first, sign)
    coder.commit()
    state = coder.state_dict()
    expected = second + residual * np.float32(decay)
    assert not mean(np.zeros_like(second), None).any()
    assert np.array_equal(coder.state_dict()["residual:w"], residual)
    for end in (coder.rollback, coder.commit):
        assert np.array_equal(mean(second, None), expected)
        assert np.array_equal(mean(second, None), second)  # another bucket of the step
        end()
        assert coder.state_dict().keys() == (state.keys() if end == coder.rollback else set())
    coder.load_state_dict(state)
    with pytest.raises(gcodec.ParameterError, match=r"^grad.shape=\(7, 9\): must be \(9, 7\)"):
        mean(second.T, None)
    assert np.array_equal(coder.state_dict()["residual:w"], residual)


def test_globs_that_match_no_parameter_are_named() -> None:
    import torch

    import gcodec.torch

    layer = torch.nn.Linear(4, 4)
    options = {"policy": {"*.wieght": "topk", "weight": "sign"}, "exclude": ["bias", "norm"]}
    with pytest.warns(UserWarning) as caught:
        gcodec.torch.ddp_hook("sign", model=layer, **options)
    prefix = "ddp_hook: no parameter of the model matches "
    assert [str(each.message) for each in caught] == [f"{prefix}'norm'", f"{prefix}'*.wieght'"]


def test_reducer_without_buckets_is_named() -> None:
    """With that setting of `torch.compile`, DDP hands over a gradient and its parameter."""
    import torch

    import gcodec.torch

    state, hook = gcodec.torch.ddp_hook("sign")
    gradient = torch.ones(2, 2)
    message = "optimize_ddp: must be 'ddp_optimizer' or 'no_optimization'"
    with pytest.raises(gcodec.ParameterError, match=message):
        hook(state, (gradient, gradient))  # type: ignore[arg-type]


def test_errors_name_the_argument_of_a_codec() -> None:
    import gcodec.torch

    for call, argument in (
        (lambda codec: gcodec.torch.ddp_hook("sign", second=codec), "second"),
        (lambda codec: gcodec.torch.fsdp_comm("sign", parameters=codec), "parameters"),
    ):
        for codec, reason in (("x", "codec='x'"), ("minmax:bits=99", "bits=99")):
            with pytest.raises(gcodec.ParameterError, match=f"^{argument}: {reason}: must be"):
                call(codec)


def test_objects_that_may_hold_a_key_are_not_pickled() -> None:
    import torch.distributed as dist

    import gcodec.torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.new_group([0])  # which cannot be pickled either
        objects = [
            gcodec.torch.ddp_hook("sign")[0],
            gcodec.torch.ddp_hook("sign", process_group=group)[0],
            gcodec.torch.fsdp_comm("sign", replicas=group),
        ]
        for one in objects:
            with pytest.raises(
                TypeError, match=r"^DdpState, .* are not pickled, .*; save a state_dict$"
            ):
                pickle.dumps(one)
    finally:
        dist.destroy_process_group()


def test_tampered_messages_are_refused() -> None:
    """With a key, refuse frames that are missing, replayed, swapped or sent by another rank."""
    from gcodec.errors import FormatError
    from gcodec.torch.messages import BucketCoder, Key, Part

    codec, rng = gcodec.parse("sign"), np.random.default_rng(4)
    coders = [BucketCoder(gcodec.Feedback(codec), 1, rank, Key(b"key")) for rank in range(2)]

    def parts(names: str) -> list[Part]:
        shapes = [Part(n, rng.standard_normal((9, 30), np.float32), codec) for n in names]
        return [*shapes, Part("bias", rng.standard_normal(5, np.float32), None)]

    def step(names: str, change: Callable[[list[bytes]], list[bytes]]) -> list[bytes]:
        buckets = [parts(names), parts(names)]
        messages = [coder.encode(p, 0) for coder, p in zip(coders, buckets, strict=True)]
        coders[0].average(buckets[0], change(messages))
        return messages

    before = step("ab", lambda messages: messages)
    start = 16 + 2  # first byte of the frames

    def without_first(message: bytes) -> bytes:
        reader = Reader(message, start)
        gcodec.frame.Frame.read(reader, gcodec.Limits(), b"key")
        end = reader.at
        gcodec.frame.Frame.read(reader, gcodec.Limits(), b"key")
        next_end = reader.at
        return message[:16] + b"\0" + message[17:end] + message[next_end:]

    changes: list[Callable[[list[bytes]], list[bytes]]] = [
        lambda messages: before,
        lambda messages: [messages[1], messages[0]],
        lambda messages: [messages[0], messages[0]],
        lambda messages: [messages[0], without_first(messages[1])],
        lambda messages: [messages[0], messages[1][:16] + b"\2" + messages[1][17:]],
        lambda messages: [messages[0], bytes(16) + messages[1][16:]],
        lambda messages: [messages[0], messages[1][16:]],
        lambda messages: [messages[0], b""],
        lambda messages: [messages[0], messages[1][:-1] + b"x"],
    ]
    for change in changes:
        with pytest.raises(FormatError, match="the message of rank"):
            step("ab", change)
    step("ab", lambda messages: messages)
