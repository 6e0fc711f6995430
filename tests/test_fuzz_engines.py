"""Test that the fuzzing engines detect writes out of bounds, and shrink inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sweeps import LONG

from fuzz import calls, guard, jitfuzz, minimize, run, targets
from fuzz.goldens import of_codecs
from gcodec.runtime.jit import Kernel, kernel

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and mprotect")


@kernel("in uint8[], int64, out uint8[]")
def trusting(data, last, out):
    """Count bytes; values up to `last` index `out` without a check of its bounds."""
    for i in range(data.size):
        if data[i] <= last:
            out[np.int64(data[i]) - 40] += np.uint8(1)


def call_of(last: int) -> calls.Call:
    data, out = np.full(5, 41, np.uint8), np.zeros(16, np.uint8)
    return calls.Call("none", trusting, (data, last, out), 0)


def test_canaries_detect_out_of_bounds_writes() -> None:
    count, actual = jitfuzz.fuzz([call_of(99)], 10_000)
    assert count == 10_000
    (finding,) = actual
    assert any(byte >= 56 or byte < 24 for byte in finding.payload)
    fuzzed = jitfuzz.Fuzzed(call_of(99))
    number = int(finding.what.rpartition(" ")[2])
    assert fuzzed.mutant(0, number) == finding.payload
    assert fuzzed.run(0, number, 1) == finding
    assert fuzzed.run(0, 0, number) is None


def test_checked_kernels_report_indices_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mutant with an index out of bounds ends the loop."""
    monkeypatch.setenv("GCODEC_CHECKED", "1")
    careful = Kernel(trusting.function, trusting.signature, "checked")
    fuzzed = jitfuzz.Fuzzed(call_of(99)._replace(kernel=careful))
    finding = fuzzed.run(0, 0, 10_000)
    assert finding is not None
    what, _, number = finding.what.rpartition(" ")
    assert what == "index out of bounds, mutant"
    assert finding.payload == fuzzed.mutant(0, int(number))
    wrong = [
        k for k in range(int(number) + 1) if any(not 24 <= b < 56 for b in indices(fuzzed, k))
    ]
    assert wrong == [int(number)]


def indices(fuzzed: jitfuzz.Fuzzed, number: int) -> list[int]:
    """Return the bytes of a mutant that `trusting` uses as indices."""
    return [byte for byte in fuzzed.mutant(0, number) if byte <= 99]


@pytest.mark.parametrize("codec", ["topk", "mxnet-2bit"])
def test_mutants_in_loops(codec: str) -> None:
    actual = [
        one for golden in of_codecs(6) if golden.codec == codec for one in calls.recorded(golden)
    ]
    assert actual
    assert all(one.args[one.hostile].tobytes() for one in actual)
    mutants = 30_000 if LONG else 10_000
    count, findings = jitfuzz.fuzz(actual[:3], mutants, seed=2)
    assert count >= mutants and not findings


@posix
@pytest.mark.parametrize("at_end", [True, False])
def test_guard_pages(at_end: bool) -> None:
    def target(byte: int) -> None:
        data, out = np.full(1, byte, np.uint8), np.zeros(16, np.uint8)
        trusting(data, 255, out)
        if byte == 50:
            raise KeyError(byte)

    count, actual = guard.replay(target, [40, 55, 56 if at_end else 20, 41, 50], at_end)
    assert [finding.number for finding in actual] == [2, 4]
    assert actual[0].what == "SIGSEGV"
    assert "KeyError: 50" in actual[1].what
    assert count >= 3
    assert "GCODEC_NUM_THREADS" not in os.environ or os.environ["GCODEC_NUM_THREADS"]


@posix
@pytest.mark.parametrize("at_end", [True, False])
def test_frames_between_guard_pages(at_end: bool) -> None:
    inputs = [golden.data for golden in of_codecs(3 if LONG else 1) if golden.key is None]
    count, result = guard.replay(lambda data: targets.run("frame", data), inputs, at_end)
    assert not result
    assert count > 3 * len(inputs)


@posix
def test_guard_page_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--target", "stream", "--guard", "--runs", "50"]) == 0
    assert "calls of kernels between guard pages" in capsys.readouterr().out


@posix
def test_minimize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(data: bytes) -> None:
        if b"x" in data and len(data) >= 3:
            raise KeyError(len(data))

    monkeypatch.setitem(targets.TARGETS, "spec", fragile)
    way, smallest = minimize.minimize("spec", b"abcdefxghijk")
    assert way is not None and way.endswith("KeyError")
    assert sorted(smallest) == sorted(b"\0\0x")
    path = tmp_path / "input"
    path.write_bytes(b"12x4")
    assert run.main(["--target", "spec", "--minimize", str(path)]) == 0
    assert len((tmp_path / "input.min").read_bytes()) == 3
    path.write_bytes(b"1")
    assert run.main(["--target", "spec", "--minimize", str(path)]) == 1


def test_guided_fuzzing_names_its_dependency() -> None:
    """The program runs only where atheris is installed, and otherwise names it."""
    program = (
        "import sys; sys.modules['atheris'] = None; from fuzz import guided; guided.main(['spec'])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=run.CORPUS.parents[1], capture_output=True, text=True)
    assert "pip install atheris" in done.stderr
