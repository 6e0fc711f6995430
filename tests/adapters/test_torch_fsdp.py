"""FSDP2's collectives in real processes, which communicate through gloo over the loopback."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any

import pytest
from rank_processes import run_ranks

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

PAIR = (
    *("exact", "exact_at_random", "counted", "parameters", "resume", "nonfinite", "unused"),
    *("experts", "frozen", "replaced", "dtypes", "excluded", "left_over"),
    *("halves", "arguments", "mismatch", "damaged", "gpt"),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Return a function that returns the results of both ranks for a scenario."""
    results = run_ranks("fsdp_ranks.py", 2, tmp_path_factory.mktemp("pair"), *PAIR)
    return lambda scenario: [rank[scenario] for rank in results]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Return a function that returns the results of four ranks for a scenario."""
    directory = tmp_path_factory.mktemp("four")
    scenarios = ("exact", "replicas", "accumulated", "tensor_parallel", "gpt", "killed")
    results = run_ranks("fsdp_ranks.py", 4, directory, *scenarios)
    return lambda scenario: [rank[scenario] for rank in results if scenario in rank]


def check_exact(seen: list[Any]) -> None:
    for rank in seen:
        assert rank["wrong"] == []
        assert rank["kept"]
        assert rank["digest"] == seen[0]["digest"]
        assert rank["step"] == 4


@pytest.mark.parametrize("scenario", ["exact", "exact_at_random"])
def test_shards_equal_mean_of_feedback_per_rank(
    pair: Callable[[str], list[Any]], scenario: str
) -> None:
    check_exact(pair(scenario))


def test_shards_of_four_ranks(four: Callable[[str], list[Any]]) -> None:
    check_exact(four("exact"))


def test_counted_bytes_are_those_on_the_wire(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("counted"):
        # The length of each gathered message travels with it; the longest one sets the length.
        assert rank["sent"] <= rank["wire"] <= rank["sent"] + 3 * 8 + 64
        assert rank["sent"] < 0.6 * rank["dense"]
        # Gradients, and parameters: those of the inner module also for the backward pass.
        assert rank["dense"] == 4 * (1272 + 492 + 2 * 816)


def test_all_ranks_compute_with_decoded_parameters(pair: Callable[[str], list[Any]]) -> None:
    assert pair("parameters") == [{"decoded": True, "dense": True, "same": True}] * 2


def test_resumed_run_has_the_same_bits(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("resume")
    assert first == second
    whole, again, half = first["digests"]
    assert whole == again != half
    assert first["steps"] == [4, 2]
    assert first["warned"] == ["fsdp_comm: the state has no residuals, so fee"]
    *refused, damaged, foreign, shape, name, early = first["refused"]
    assert refused == ["state=None", "state={}", "state", "state='x"]
    assert (damaged, foreign) == ("state={'step'", "state=5")
    assert (shape, name) == ("state", "state='residual")  # of a tensor, and of no parameter
    assert early == "state"  # of a tensor, when the model is registered


def test_nan_of_one_rank_fails_all_and_keeps_residuals(
    pair: Callable[[str], list[Any]],
) -> None:
    error = (
        "fsdp_comm: step 2, the root module: the gradient of 'first.weight' contains NaN or Inf, "
        "on rank 1"
    )
    assert pair("nonfinite") == [{"error": error, "same": True, "continues": True}] * 2


def test_pass_that_begins_with_another_module_is_rolled_back(
    pair: Callable[[str], list[Any]],
) -> None:
    assert pair("experts") == [{"kept": [True] * 6, "step": 3}] * 2


def test_damaged_message_is_refused(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("damaged")
    assert first == {"error": "", "same": False}
    assert second["error"].startswith(
        "fsdp_comm: step 1, the root module: the message of rank 0 is not of this bucket: "
    )
    assert second["same"]


def test_dead_rank_fails_the_others(four: Callable[[str], list[Any]]) -> None:
    ranks = four("killed")
    assert len(ranks) == 3
    for rank in ranks:
        assert rank["error"]
        assert rank["seconds"] < 45  # less than the timeout of 60 seconds


def test_gradients_of_a_failed_pass_are_dropped(pair: Callable[[str], list[Any]]) -> None:
    assert pair("left_over") == [[True, True]] * 2


def test_unused_parameter_changes_the_layout(pair: Callable[[str], list[Any]]) -> None:
    first, second = pair("unused")
    assert first == second
    assert len(first["names"]) == 4


@pytest.mark.parametrize("scenario", ["frozen", "replaced"])
def test_frozen_parameter_leaves_the_pieces_of_others(
    pair: Callable[[str], list[Any]], scenario: str
) -> None:
    assert pair(scenario) == [{"names": [], "steps": 3}] * 2


def test_excluded_parameters_travel_uncompressed_in_pieces_that_are_not_cut(
    pair: Callable[[str], list[Any]],
) -> None:
    first, second = pair("excluded")
    assert first == second
    assert len(first) == 4
    for name, seen in first.items():
        is_cut = "alone" in name  # in the first pass, in which the branch takes part
        assert seen == [[True, is_cut], [True, False]]


def test_parameters_of_several_dtypes_travel_as_bytes(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("dtypes"):
        assert rank["exact"]
        assert rank["sent"] == rank["shard"]
        assert rank["residuals"] == [f"worker:residual:{owner}/weight" for owner in (0, 1)]


def test_parameters_that_tensor_parallelism_cuts(four: Callable[[str], list[Any]]) -> None:
    ranks = four("tensor_parallel")
    shapes = {"0.weight": [12, 16], "1.weight": [17, 23], "2.weight": [6, 33]}
    residuals = {f"{owner}/{name}": shape for owner in (0, 1) for name, shape in shapes.items()}
    assert [rank["residuals"] for rank in ranks] == [residuals] * 4
    assert len({rank["digest"] for rank in ranks}) == 1


def test_reduced_dtypes_are_close_to_dense(pair: Callable[[str], list[Any]]) -> None:
    assert pair("halves") == [{"close": True}] * 2


def test_arguments(pair: Callable[[str], list[Any]]) -> None:
    for rank in pair("arguments"):
        assert rank["wrong"] == []
        assert rank["plain"].startswith("model: ")
        assert rank["second"].startswith("model: another one is registered; call fsdp_comm for ea")
        assert "='DTensor': must be a whole tensor, not a DTensor" in rank["sharded"]
        assert rank["warned"] == ["fsdp_comm: no parameter of the model matches 'nothing.*'"]
        step, arrays = rank["refused"]
        assert step.startswith("state['step']=-1: must be an integer from 0")
        assert arrays.startswith("state='residual:x': must be residual:NAME of float32")
        assert rank["kept"] == []
        allowed = "torch.float64: must be float32, float16 or bfloat16; see MixedPrecisionPolicy"
        kinds = [text.removesuffix(f" of '0.weight'={allowed}") for text in rank["wide"]]
        assert kinds == ["dtype of the gradient", "dtype of the parameter"]
        error, none = rank["divided"]
        assert error.startswith("fsdp_comm: '0': FSDP2 asks for another reduction than SUM and")
        assert none is None
        assert rank["devices"] == ["cpu"]


def test_ranks_with_different_arguments(pair: Callable[[str], list[Any]]) -> None:
    error = "fsdp_comm: the ranks differ: seed=0 on rank 0, 1 on rank 1"
    assert pair("mismatch") == [{"error": error}] * 2


def test_replicas_on_other_nodes(four: Callable[[str], list[Any]]) -> None:
    """Once with HSDP's own all-reduce of shards, and once compressed between nodes only."""
    results = four("replicas")
    for places in zip(*(rank["places"] for rank in results), strict=True):
        assert sorted(places) == [0, 1, 2, 3]  # so no two ranks round in the same way
    for rank in results:
        assert rank["digests"] == results[0]["digests"]
        assert rank["same"] == [True, True]
        hybrid, between = rank["errors"]
        assert hybrid.endswith("the gradient of 'first.weight' contains NaN or Inf, on rank 3")
        # Either rank of the node may hold the shard with that part of the mean.
        assert "the node's mean gradient of 'first.weight' contains NaN or Inf" in between
        assert rank["far"] < 0.02
        assert rank["dense"] == [3 * 4 * 1272] * 2  # of a ring of two, in both ways
        codec, mesh = rank["refused"]
        assert codec == "replicas: must come with a codec for gradients"
        assert mesh.startswith("replicas=")
        assert mesh.endswith("None, because the mesh of the model has a dimension of replicas")


def test_nan_before_the_pass_that_replicas_reduce(four: Callable[[str], list[Any]]) -> None:
    for rank in four("accumulated"):
        assert rank["error"].endswith("'first.weight' contains NaN or Inf, on rank 3")
        assert rank["same"]


@pytest.mark.parametrize("ranks", ["pair", "four"])
def test_small_gpt_learns_as_with_dense_collectives(
    ranks: str, request: pytest.FixtureRequest
) -> None:
    for rank in request.getfixturevalue(ranks)("gpt"):
        assert rank["loss"] < 1.01 * rank["dense"]
        counts = re.search(r"([\d,]+) bytes sent in place of ([\d,]+)", rank["text"])
        assert counts is not None
        sent, dense = (int(text.replace(",", "")) for text in counts.groups())
        assert sent < 0.1 * dense
