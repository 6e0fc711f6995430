"""NVIDIA FLARE: filters that send arrays as frames, and refuse damaged or hostile ones."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.utils import fobs
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType

import gcodec
import gcodec.nvflare
from gcodec.errors import ParameterError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
UPDATE = np.random.default_rng(0).standard_normal((40, 30), np.float32)


def sent(encoder: Any, kind: str = DataKind.WEIGHT_DIFF, **arrays: Any) -> Any:
    """Return what arrives when a client's filter has encoded arrays."""
    dxo = DXO(kind, {"weight": UPDATE, "count": np.array([3], np.int64), **arrays})
    shareable = encoder.process(dxo.to_shareable(), FLContext())
    return fobs.loads(fobs.dumps(shareable))


def decoded(shareable: Any, **options: Any) -> dict[str, Any]:
    decoder = gcodec.nvflare.FrameDecoder(**options)
    return dict(from_shareable(decoder.process(shareable, FLContext())).data)


def test_frames_are_decoded_with_feedback() -> None:
    options: dict[str, Any] = {"decay": 0.5, "seed": 7}
    encoder = gcodec.nvflare.FrameEncoder("randomk:ratio=0.1", **options)
    memory = gcodec.Feedback("randomk:ratio=0.1", **options)
    for _ in range(3):
        arrived = sent(encoder, text="kept")
        expected = gcodec.decode(memory.compress("weight", UPDATE))
        values = decoded(arrived)
        np.testing.assert_array_equal(values["weight"], expected)
        assert values["count"].tolist() == [3]
        assert values["text"] == "kept"


def test_weights_have_no_feedback() -> None:
    encoder = gcodec.nvflare.FrameEncoder(gcodec.Policy({"*": "topk:ratio=0.1"}))
    for _ in range(2):
        values = decoded(sent(encoder, DataKind.WEIGHTS))
        expected = gcodec.decode(gcodec.encode(UPDATE, "topk:ratio=0.1"))
        np.testing.assert_array_equal(values["weight"], expected)


def test_differences_in_bfloat16_have_feedback() -> None:
    encoder, memory = gcodec.nvflare.FrameEncoder("sign"), gcodec.Feedback("sign")
    update = UPDATE.astype(BFLOAT16)
    for _ in range(2):
        arrived = sent(encoder, weight=update)
        frame = memory.compress("weight", update)
        assert from_shareable(arrived).data["weight"] == frame
        np.testing.assert_array_equal(decoded(arrived)["weight"], gcodec.decode(frame))


def test_weights_are_rounded_differently_in_each_round() -> None:
    encoder = gcodec.nvflare.FrameEncoder("qsgd:s=1")
    first, second = (from_shareable(sent(encoder, DataKind.WEIGHTS)).data for _ in range(2))
    assert first["weight"] != second["weight"]


def test_differences_may_have_no_feedback() -> None:
    encoder = gcodec.nvflare.FrameEncoder("topk:ratio=0.1", feedback=False)
    first, second = (from_shareable(sent(encoder)).data for _ in range(2))
    assert first["weight"] == second["weight"]


def test_norm_is_that_of_all_arrays() -> None:
    arrays = {"a": np.float32([3e30]), "b": np.float32([4e30])}
    norm = float(np.hypot(*(float(x[0]) for x in arrays.values())))
    dxo = DXO(DataKind.WEIGHTS, arrays)
    for factor, is_allowed in ((1.001, True), (0.999, False)):
        decoder = gcodec.nvflare.FrameDecoder(max_norm=factor * norm)
        if is_allowed:
            decoder.process_dxo(dxo, None, FLContext())
        else:
            with pytest.raises(gcodec.FormatError, match="norm of 5e"):
                decoder.process_dxo(dxo, None, FLContext())
    exact = DXO(DataKind.WEIGHTS, {"a": np.float32([3, 4])})
    gcodec.nvflare.FrameDecoder(max_norm=5).process_dxo(exact, None, FLContext())


def test_other_entries_of_meta_are_kept() -> None:
    encoder, decoder = gcodec.nvflare.FrameEncoder("sign"), gcodec.nvflare.FrameDecoder()
    dxo = DXO(DataKind.WEIGHT_DIFF, {"weight": UPDATE}, {"steps": 5})
    encoded = encoder.process_dxo(dxo, None, FLContext())
    assert encoded.meta == {"steps": 5, "gcodec.frames": ["weight"]}
    assert decoder.process_dxo(encoded, None, FLContext()).meta == {"steps": 5}
    assert decoder.process_dxo(dxo, None, FLContext()) is None  # for no change


def test_largest_size_bounds_elements_of_any_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default bound on bytes allows fewer elements than a caller may ask for."""
    limits = functools.partial(gcodec.Limits, max_bytes=64)
    monkeypatch.setattr("gcodec.nvflare.Limits", limits)
    arrived = sent(gcodec.nvflare.FrameEncoder("raw"))
    np.testing.assert_array_equal(decoded(arrived, max_elements=1200)["weight"], UPDATE)


@pytest.mark.parametrize("count", [1, 2])
def test_arrays_of_frames_are_bounded_together(count: int) -> None:
    arrays = {f"layer{number}": UPDATE for number in range(1, count)}
    arrived = sent(gcodec.nvflare.FrameEncoder("sign"), **arrays)
    if count == 1:
        assert decoded(arrived, max_total_elements=1201).keys() == {"weight", "count"}
    else:
        with pytest.raises(gcodec.LimitExceeded, match=r"more than max_total_elements=1201$"):
            decoded(arrived, max_total_elements=1201)


RULES = [{"name": "*.bias", "codec": "raw"}, {"codec": "topk:ratio=0.1"}]


@pytest.mark.parametrize(
    ("component", "arguments"),
    [
        (gcodec.nvflare.FrameEncoder("sign"), {"codec": "sign"}),
        (
            gcodec.nvflare.FrameEncoder("sign", feedback=False, decay=0.5, seed=np.int64(3)),  # type: ignore[arg-type]
            {"codec": "sign", "feedback": False, "decay": 0.5, "seed": 3},
        ),
        (gcodec.nvflare.FrameEncoder(gcodec.parse("sign")), {"codec": [{"codec": "sign"}]}),
        (gcodec.nvflare.FrameEncoder(gcodec.Policy(RULES)), {"codec": RULES}),
        (gcodec.nvflare.FrameDecoder(), {}),
        (
            gcodec.nvflare.FrameDecoder(9, 1000, 2000),
            {"max_norm": 9.0, "max_elements": 1000, "max_total_elements": 2000},
        ),
    ],
)
def test_jobs_of_the_api_state_the_arguments(
    tmp_path: Path, component: Any, arguments: dict[str, Any]
) -> None:
    job = FedJob(name="job")
    job.to_server(component, filter_type=FilterType.TASK_RESULT)
    job.export_job(str(tmp_path))
    text = (tmp_path / "job" / "app_server" / "config" / "config_fed_server.json").read_text()
    stated = json.loads(text)["task_result_filters"][0]["filters"][0]
    assert stated == {"path": f"gcodec.nvflare.{type(component).__name__}", "args": arguments}
    type(component)(**stated["args"])


def test_a_job_may_state_the_rules_of_a_policy() -> None:
    values = decoded(sent(gcodec.nvflare.FrameEncoder(RULES), **{"layer.bias": UPDATE}))
    np.testing.assert_array_equal(values["layer.bias"], UPDATE)
    assert np.count_nonzero(values["weight"]) == 120


def test_refused_result_keeps_the_residuals() -> None:
    encoder = gcodec.nvflare.FrameEncoder("topk:ratio=0.1")
    memory = gcodec.Feedback("topk:ratio=0.1")
    complex_bias = np.ones(3, np.complex64)
    for bias in (np.zeros(3), np.full(3, np.inf), np.ones(3), complex_bias, np.ones(3)):
        if bias is complex_bias:
            dxo = DXO(DataKind.WEIGHT_DIFF, {"weight": UPDATE, "bias": bias})
            with pytest.raises(TypeError, match="complex64"):
                encoder.process_dxo(dxo, None, FLContext())
        elif np.isfinite(bias).all():
            values = decoded(sent(encoder, bias=bias))
            expected = gcodec.decode(memory.compress("weight", UPDATE))
            np.testing.assert_array_equal(values["weight"], expected)
        else:
            dxo = DXO(DataKind.WEIGHT_DIFF, {"weight": UPDATE, "bias": bias})
            with pytest.raises(ParameterError, match="NaN or Inf"):
                encoder.process_dxo(dxo, None, FLContext())


@pytest.mark.parametrize(
    ("factor", "reason"), [(float("nan"), "NaN"), (float("inf"), "NaN"), (1e9, "norm")]
)
def test_hostile_arrays_without_frames_are_refused(factor: float, reason: str) -> None:
    plain = DXO(DataKind.WEIGHTS, {"weight": UPDATE * np.float32(factor)}).to_shareable()
    mixed = sent(gcodec.nvflare.FrameEncoder("sign"))
    dxo = from_shareable(mixed)
    dxo.data["bias"] = np.full(3, factor)
    mixed = dxo.update_shareable(mixed)
    wave = DXO(DataKind.WEIGHTS, {"wave": np.full(3, factor * 1j)}).to_shareable()
    number = DXO(DataKind.WEIGHTS, {"weight": factor}).to_shareable()  # added to each element
    number = fobs.loads(fobs.dumps(number))
    for shareable in (plain, mixed, wave, number):
        with pytest.raises(gcodec.FormatError, match=reason):
            decoded(shareable, max_norm=1e4)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_8_bits_have_no_loss(dtype: Any) -> None:
    bias = UPDATE[0].astype(dtype)
    values = decoded(sent(gcodec.nvflare.FrameEncoder("sign"), bias=bias))["bias"]
    assert values.dtype == bias.dtype
    assert values.tobytes() == bias.tobytes()


def test_arrays_of_other_things_than_numbers_pass() -> None:
    words = np.array(["a", "b"])
    dxo = DXO(DataKind.WEIGHTS, {"words": words, "weight": UPDATE}, {"gcodec.frames": []})
    values = gcodec.nvflare.FrameDecoder(max_norm=1e4).process_dxo(dxo, None, FLContext())
    assert values is not None
    assert values.data["words"] is words


@pytest.mark.parametrize("names", [5, [5], [["weight"]], "weight"])
def test_damaged_list_of_frames_is_refused(names: Any) -> None:
    dxo = DXO(DataKind.WEIGHTS, {"weight": UPDATE}, {"gcodec.frames": names})
    with pytest.raises(gcodec.FormatError, match="not a"):
        gcodec.nvflare.FrameDecoder().process_dxo(dxo, None, FLContext())


def test_arrays_without_frames_pass() -> None:
    shareable = DXO(DataKind.WEIGHTS, {"weight": UPDATE}).to_shareable()
    np.testing.assert_array_equal(decoded(shareable)["weight"], UPDATE)


def replaced(name: str, values: np.ndarray) -> Callable[[dict[str, Any]], None]:
    frame = gcodec.encode(values, "raw", name=name, nonfinite="propagate")
    return lambda data: data.update(weight=frame)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.update(weight=data["weight"][:-1]), "too early"),
        (lambda data: data.update(weight="text"), "not a frame"),
        (lambda data: data.pop("weight"), "not a frame"),
        (replaced("other", UPDATE), "'other'"),
        (replaced("weight", UPDATE * np.nan), "NaN"),
        (replaced("weight", UPDATE * np.float32(1e9)), "norm"),
        (replaced("weight", (UPDATE * np.nan).astype(BFLOAT16)), "NaN"),
        (replaced("weight", (UPDATE * 1e9).astype(BFLOAT16)), "norm"),
        (replaced("weight", (UPDATE * np.nan).astype(ml_dtypes.float8_e4m3fn)), "NaN"),
        (replaced("weight", np.full(600, 448).astype(ml_dtypes.float8_e4m3fn)), "norm"),
        (replaced("weight", (UPDATE * np.inf).astype(ml_dtypes.float8_e5m2)), "NaN"),
        (replaced("weight", np.zeros(5000, np.float32)), "limit"),
    ],
)
def test_damaged_or_hostile_result_is_refused(
    change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    shareable = sent(gcodec.nvflare.FrameEncoder("sign"))
    dxo = from_shareable(shareable)
    change(dxo.data)
    with pytest.raises(gcodec.FormatError, match=reason):
        decoded(dxo.update_shareable(shareable), max_norm=1e4, max_elements=2000)


@pytest.mark.parametrize("options", [{"feedback": 1}, {"decay": 2}, {"seed": -1}])
def test_invalid_arguments_of_the_encoder(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        gcodec.nvflare.FrameEncoder("sign", **options)


@pytest.mark.parametrize(
    "options", [{"max_norm": 0}, {"max_elements": 0}, {"max_total_elements": 0}]
)
def test_invalid_arguments_of_the_decoder(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        gcodec.nvflare.FrameDecoder(**options)
