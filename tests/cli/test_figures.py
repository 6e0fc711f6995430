"""The figures of docs/reliability.md, in their short forms."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gcodec
from fuzz.figures import __main__ as command
from fuzz.figures import bounds, damage, exhaustive, faults
from fuzz.figures.figure import Figure

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="places and processes of POSIX")


@pytest.mark.parametrize("name", command.FIGURES)
def test_short_figures_hold(name: str) -> None:
    figure = command.FIGURES[name](True)
    assert figure.name == name
    assert not figure.failures
    assert figure.count > 10


def test_figures_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Figure("F1", "all is well", 7, "frames", [])
    bad = Figure("F2", "nothing is wrong", 7, "bytes", [f"at {i}" for i in range(9)])
    monkeypatch.setattr(command, "FIGURES", {"F1": lambda short: good, "F2": lambda short: bad})
    assert command.main(["F1"]) == 0
    assert capsys.readouterr().out.startswith("F1  all is well: holds; 7 frames")
    assert command.main(["--short"]) == 1
    output = capsys.readouterr().out
    assert "F2  nothing is wrong: FAILED 9 times; 7 bytes\n    at 0\n" in output
    assert "at 5" not in output


def test_undetected_damage_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "of_codecs", lambda each: [damage.goldens()[0]])
    monkeypatch.setattr(damage, "_accepted", lambda data, key: data[-1:] == b"\0")
    assert damage.damage(True).failures


def test_difference_from_the_oracle_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    case = exhaustive.Case("sign", b"", (5,), {"scale": 2.0})
    monkeypatch.setattr(exhaustive, "CASES", (case,))
    monkeypatch.setattr(exhaustive, "of_codecs", lambda each: [])
    assert exhaustive.exhaustive(True).failures == []
    own = gcodec.codecs()["sign"]._decode  # type: ignore[attr-defined]
    monkeypatch.setattr(gcodec.codecs()["sign"], "_decode", lambda *args: -own(*args))
    assert exhaustive.exhaustive(True).failures


def test_memory_of_decoding_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = gcodec.encode(np.ones(9, np.float32), "raw")
    least = bounds.cost_of(frame).memory
    kept = np.zeros(1 << 16)

    def wasteful(data: bytes) -> None:
        assert np.array_equal(kept, kept.copy())

    monkeypatch.setattr(gcodec, "decode", wasteful)
    assert bounds.cost_of(frame).memory > kept.nbytes > least


def test_each_allocation_fails_in_turn() -> None:
    def call() -> bytes:
        return np.empty(3).tobytes()[:0] + np.zeros(2).tobytes()

    assert faults._failing(call) == (2, [])
    with pytest.raises(MemoryError), faults.failing_at(2):
        call()
    assert call() == bytes(16)

    def sloppy() -> int:
        try:
            return int(np.zeros(3).size)
        except MemoryError:
            return 4

    broken: list[int] = []

    def stateful() -> int:
        broken.append(0)
        np.zeros(3)
        broken.clear()
        return len(broken)

    assert faults._failing(sloppy)[1] == []
    count, wrong = faults._failing(lambda: (len(broken), stateful())[0])
    assert count == 1 and "the result differs" in wrong[0]


def test_failed_step_drops_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(50, np.float32)
    for spec in ("mxnet-2bit", "topk:k=3", "sign"):
        feedback = gcodec.Feedback(spec, track=True)
        first = feedback.compress("w", x)
        with pytest.raises(MemoryError), faults.failing_at(3):
            feedback.compress("w", x)
        if "residual:w" in feedback.state_dict():
            continue
        with pytest.raises(gcodec.ParameterError):
            feedback.residual("w")
        with pytest.raises(gcodec.ParameterError):
            feedback.l1_norms("w")
        assert np.array_equal(gcodec.decode(feedback.compress("w", x)), gcodec.decode(first))
