"""Test the fuzz targets on the corpus and some mutants; ``python -m fuzz`` runs longer."""

from __future__ import annotations

import itertools
import random

import pytest
from sweeps import LONG

from fuzz import run as fuzzer
from fuzz import targets
from fuzz.repair import repair

MUTANTS = 20_000 if LONG else 100
FEWER = {"command": 30, "decoders": 40}


@pytest.mark.parametrize("target", targets.TARGETS)
def test_corpus(target: str) -> None:
    seeds = fuzzer.corpus(target)
    assert len(seeds) > 1
    for data in seeds:
        assert len(data) <= 4096
        targets.run(target, data)


@pytest.mark.parametrize("target", targets.TARGETS)
def test_mutants(target: str) -> None:
    rng = random.Random(1)
    data = b""
    try:
        mutants = fuzzer.mutants(fuzzer.corpus(target), rng)
        for data in itertools.islice(mutants, FEWER.get(target, MUTANTS)):
            targets.run(target, data)
    except Exception as error:
        replay = f"python -m fuzz --target {target} --replay '{data.hex()}'"
        raise AssertionError(replay) from error


@pytest.mark.parametrize("target", ["frame", "repaired", "stream"])
def test_corpus_contains_valid_frames(target: str) -> None:
    """Most of the corpus must pass the checks of the decoder, or the mutants test little."""
    import gcodec

    decoded = 0
    for data in fuzzer.corpus(target)[1:]:
        key = b"k" if data[4] & 4 else None
        decoded += sum(frame.decode().size for frame in gcodec.iter_frames(data, key=key))
        if key is None and target == "repaired":
            assert repair(data) == data
    assert decoded > 10


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzer.main(["--target", "frame", "--runs", "120", "--seed", "3"]) == 0
    assert "frame: 125 inputs" in capsys.readouterr().out
    assert fuzzer.main(["--target", "spec", "--seconds", "0.05"]) == 0
    assert "spec: " in capsys.readouterr().out
    assert fuzzer.main(["--target", "spec", "--replay", b"raw".hex()]) == 0
    assert "passes" in capsys.readouterr().out


def test_failures_print_the_replay_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(data: bytes) -> None:
        if len(data) > 5:
            raise KeyError(len(data))

    monkeypatch.setitem(targets.TARGETS, "spec", fragile)
    assert fuzzer.main(["--target", "spec", "--runs", "50"]) == 1
    captured = capsys.readouterr()
    assert "KeyError" in captured.err
    assert "replay: python -m fuzz --target spec --replay '" in captured.out
    replay = captured.out.split("'")[1]
    with pytest.raises(KeyError):
        fuzzer.main(["--target", "spec", "--replay", replay])
