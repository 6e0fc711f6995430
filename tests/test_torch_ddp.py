"""The DDP hook among real processes, which talk gloo over the loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

ROOT = Path(__file__).parent.parent
SCENARIOS = (
    *("exact", "exact_at_random", "no_sync", "nonfinite", "resume", "policies"),
    *("layouts", "sparse", "arguments", "mismatch", "communicator", "stalled"),
)
COMPRESSED = ["first.weight", "last.weight", "second.weight"]


def run_ranks(size: int, directory: Path, *scenarios: str) -> list[Any]:
    """Return what each rank wrote; None of one that wrote nothing."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "GCODEC_NUM_THREADS": "1",
    }
    words = [sys.executable, "-W", "error", str(ROOT / "tests" / "ddp_ranks.py")]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(size), str(directory), *scenarios],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank, text in zip(ranks, printed, strict=True):
        assert rank.returncode == 0, text
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """What each of two ranks saw of a scenario."""
    found = run_ranks(2, tmp_path_factory.mktemp("pair"), *SCENARIOS)
    return lambda scenario: [rank[scenario] for rank in found if scenario in rank]


def check_exact(seen: list[Any]) -> None:
    for rank in seen:
        assert rank["wrong"] == []
        assert rank["kept"] == dict.fromkeys(rank["kept"], True)
        assert rank["sent"] < 5 * 4 * rank["values"]
        names = [f"{kind}:{name}" for kind in ("residual", "step") for name in COMPRESSED]
        assert rank["keys"] == sorted([*names, "iteration", "rank", "size"])
        assert rank["digest"] == seen[0]["digest"]
        assert rank["received"] == sum(other["sent"] for other in seen) - rank["sent"]
        assert min(rank["coding"]) > 0


@pytest.mark.parametrize("scenario", ["exact", "exact_at_random"])
def test_gradients_are_those_of_feedback_on_each_rank(
    pair: Callable[[str], list[Any]], scenario: str
) -> None:
    check_exact(pair(scenario))


def test_four_ranks_of_which_one_dies(tmp_path: Path) -> None:
    seen = run_ranks(4, tmp_path, "exact_at_random", "communicator", "killed")
    check_exact([rank["exact_at_random"] for rank in seen])
    for rank in seen:
        check_communicator(rank["communicator"], 4)
    left = [rank["killed"] for rank in seen if "killed" in rank]
    assert len(left) == 3
    for rank in left:
        first, second = rank["errors"]
        assert "ddp_hook: step 2: " in first
        assert second.startswith("the exchange failed before: ")
        assert rank["seconds"] < 45  # not by the timeout, of 60


def test_steps_without_an_exchange(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("no_sync")
    assert first == second
    assert first["close"]


def test_infinity_is_seen_and_leaves_residuals_alone(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("nonfinite")
    assert first == second
    assert first["infinite"] == ["second.weight"]
    assert first["same"] == ["rank", "residual:second.weight", "size", "step:second.weight"]
    assert first["moved"]
    assert first["finite"]


def test_a_checkpoint_goes_on_with_the_same_bits(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("resume")
    for named in ("True", "False"):
        whole, again, half = first[named]
        assert whole == again != half
        assert first[named] == second[named]
    assert first["refused"] == "state['rank']=7: must be 0: each has its own"


def test_rules_dense_tensors_and_bfloat16(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("policies")
    assert first == second
    assert first["residuals"] == ["residual:second.weight"]
    assert first["plain"] == ["iteration", "rank", "size"]


def test_gradients_of_other_layouts(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("layouts"):
        assert rank == {"strided": True, "close": [True] * 4}


def test_sparse_gradients(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("sparse"):
        assert rank == {"close": [True] * 3}


def test_arguments_that_are_refused(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("arguments"):
        assert rank == {"wrong": []}


def test_ranks_with_other_arguments(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("mismatch"):
        assert rank["error"] == "ddp_hook: the ranks differ: seed=3 on rank 0, 4 on rank 1"


def test_a_rank_that_does_not_answer(pair: Callable[[str], list[Any]]) -> None:
    waiting, _ = pair("stalled")
    assert "ddp_hook: step 1: " in waiting["error"]
    assert 3 < waiting["seconds"] < 30


@pytest.mark.parametrize("rank", [0, 1])
def test_communicator(pair: Callable[[str], list[Any]], rank: int) -> None:
    check_communicator(pair("communicator")[rank], 2)


@pytest.mark.gpu
def test_communicator_of_nccl(tmp_path: Path) -> None:
    import torch

    size = min(torch.cuda.device_count(), 2)
    if not size or not torch.distributed.is_nccl_available():
        pytest.skip("there is no CUDA device, or torch has no NCCL")
    for rank in run_ranks(size, tmp_path, "communicator_nccl"):
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
        "broadcast": [True] * size,
    }


SPECS = ("mxnet-2bit", "sign", "qsgd", "topk:ratio=0.1", "powersgd", "minifloat:code=none")


@pytest.mark.parametrize("spec", SPECS)
def test_a_step_that_is_given_up_is_undone_without_a_copy(spec: str) -> None:
    """By Inf of another rank, or as no message came: the arrays are those of before."""
    from gcodec.torch.messages import BucketCoder, Part

    codec, rng = gcodec.parse(spec), np.random.default_rng(3)
    coders = [BucketCoder(gcodec.Feedback(spec, seed=1, rank=rank), 1, rank) for rank in range(2)]
    plain = [gcodec.Feedback(spec, seed=1, rank=rank) for rank in range(2)]

    def gradients() -> list[list[Part]]:
        return [
            [Part(name, rng.standard_normal((40, 30), np.float32), codec) for name in "ab"]
            for _ in coders
        ]

    def step(wrong: str = "") -> tuple[list[list[Part]], list[bytes]]:
        parts = gradients()
        if wrong:
            parts[1]["ab".index(wrong)].values[3, 3] = np.inf
        kept = [[part.values.copy() for part in every] for every in parts]
        messages = [coder.encode(every, 0) for coder, every in zip(coders, parts, strict=True)]
        for feedback, every, values in zip(plain, parts, kept, strict=True):
            for part, gradient in zip(every, values, strict=True):
                if part.name != wrong:
                    feedback.compress(part.name, gradient)
        return parts, messages

    def residuals() -> dict[str, np.ndarray]:
        found = {}
        for rank, coder in enumerate(coders):
            assert coder.feedback is not None
            for name in "ab":
                found[f"{rank}{name}"] = coder.feedback._residuals[name]
        return found

    def average(parts: list[list[Part]], messages: list[bytes]) -> None:
        for coder, every in zip(coders, parts, strict=True):
            coder.average(every, messages)

    for _ in range(3):
        average(*step())
    for wrong in ("a", "b", "ab", "a"):
        before = residuals()
        bits = {key: array.tobytes() for key, array in before.items()}
        if wrong == "ab":  # no message arrives
            for coder, every in zip(coders, gradients(), strict=True):
                coder.encode(every, 0)
                coder.give_up()
        else:
            average(*step(wrong))
        for key, array in residuals().items():
            if key[1] in wrong:
                assert array is before[key]
                assert array.tobytes() == bits[key]
        average(*step())
    for coder, feedback in zip(coders, plain, strict=True):
        assert coder.feedback is not None
        found, expected = coder.feedback.state_dict(), feedback.state_dict()
        assert {key: value.tobytes() for key, value in found.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }
        # A spare array for each tensor of the bucket, and no more.
        assert [len(rooms) for rooms in coder.feedback._residuals._rooms.values()] == [2]
