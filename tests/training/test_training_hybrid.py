"""The hybrid policy: by bytes, by name, and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.training import hybrid


def test_threshold_counts_bytes() -> None:
    policy = hybrid(1_000_000, small="sign", large="topk")
    for dtype, itemsize in (("float32", 4), ("bfloat16", 2), ("float64", 8)):
        n = 1_000_000 // itemsize
        assert str(policy.codec("w", (n - 1,), dtype)) == "sign"
        assert str(policy.codec("w", (n // 2, 2), dtype)) == "topk"


def test_excluded_names_are_sent_raw() -> None:
    policy = hybrid(100, exclude=["*.bias", "norm*"])
    for name in ("fc.bias", "norm1.weight"):
        assert policy.codec(name, (10**6,), "float32").name == "raw"
    assert policy.codec("fc.weight", (10**6,), "float32").name == "topk"
    assert gcodec.Policy.from_json(policy.to_json()) == policy
    assert hybrid(exclude=[]) == hybrid()
    assert hybrid(exclude="*.bias") == hybrid(exclude=["*.bias"])


def test_feedback_with_both_codecs() -> None:
    random = np.random.default_rng(0)
    tensors = {"small": random.standard_normal(50), "large": random.standard_normal(1000)}
    feedback = gcodec.Feedback(hybrid(1000))
    for name, values in tensors.items():
        x = values.astype(np.float32)
        frame = feedback.compress(name, x)
        assert len(frame) < x.nbytes / 3
        assert np.abs(gcodec.decode(frame) + feedback.residual(name) - x).max() < 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hybrid(0), "threshold_bytes=0: must be an integer from 1"),
        (lambda: hybrid(1.5), "threshold_bytes=1.5"),  # type: ignore[arg-type]
        (lambda: hybrid(small="nope"), "policy.rules[0].codec: codec"),
        (lambda: hybrid(exclude=5), "exclude=5: must be a glob"),  # type: ignore[arg-type]
        (lambda: hybrid(exclude=[3]), "exclude=[3]"),  # type: ignore[list-item]
        (lambda: hybrid(exclude=np.arange(2)), "exclude=<ndarray>"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        call()
    assert str(caught.value).startswith(message)
