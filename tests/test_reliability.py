"""Test docs/reliability.md: damage to other codecs, killed commands, and keys."""

from __future__ import annotations

import hmac
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

import gcodec
from bench import corruption
from fuzz import cuts
from gcodec.wire.primitives import TAG_NBYTES


def test_damage_is_never_silent() -> None:
    own = [coder for coder in corruption.coders() if coder.name.startswith("gcodec ")]
    assert len(own) == len(corruption.SPECS)
    for coder in own:
        assert corruption.row(coder, 60) == (coder.name, 60, 0, 0)


def test_undetected_damage_is_documented() -> None:
    """The identity codec detects no damage."""
    coder = corruption.Coder("none", bytes(99), lambda data: data)
    actual = corruption.row(coder, 30)
    assert actual.wrong == 30 and actual.refused == actual.right == 0
    lazy = corruption.Coder("constant", bytes(99), lambda data: b"")
    assert corruption.row(lazy, 30).right == 30
    rng = random.Random(1)
    mutants = [corruption.mutant(bytes(99), i, rng) for i in range(30)]
    assert all(len(one) < 99 for one in mutants[::3])
    assert all(sum(map(int.bit_count, one)) == 1 for one in mutants[1::3] + mutants[2::3])
    assert all(any(one[: corruption.FRONT]) for one in mutants[1::3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_command_leaves_whole_files(tmp_path: Path) -> None:
    count, wrong = cuts.cuts(10, seed=3, folder=tmp_path)
    assert not wrong
    assert count["old"] + count["new"] + count["nothing"] == 10


def test_temporary_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(arguments: list[str], seconds: float | None, sent: signal.Signals) -> None:
        target = Path(arguments[-1])
        target.write_bytes(b"whole" if seconds is None else b"half")
        if seconds is not None:
            (target.parent / "part").write_bytes(b"")

    monkeypatch.setattr(cuts, "_child", hasty)
    count, wrong = cuts.cuts(12, folder=tmp_path)
    assert count["another"] == count["left"] == 12
    assert sum("another file" in line for line in wrong) == 12
    # Only SIGKILL may leave a partial file.
    assert 0 < sum("part is left" in line for line in wrong) < 12


def test_tags_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return a == b

    frame = gcodec.encode(np.ones(5, np.float32), "sign", key=b"secret")
    monkeypatch.setattr(hmac, "compare_digest", compare)
    gcodec.decode(frame, key=b"secret")
    with pytest.raises(gcodec.Corrupt, match="tag"):
        gcodec.decode(frame, key=b"other")
    assert len(seen) == 2 and seen[0][0] == seen[0][1] == frame[-TAG_NBYTES:]


@pytest.mark.parametrize("call", [gcodec.decode, gcodec.Frame.from_bytes, gcodec.decode_sparse])
def test_keys_require_a_tag(call: object) -> None:
    plain = gcodec.encode(np.ones(50, np.float32), "topk:k=3")
    signed = gcodec.encode(np.ones(50, np.float32), "topk:k=3", key=b"k")
    with pytest.raises(gcodec.Corrupt, match="does not bear the tag"):
        call(plain, key=b"k")  # type: ignore[operator]
    with pytest.raises(gcodec.Unsupported, match="authenticated: pass its key as key="):
        call(signed)  # type: ignore[operator]
    call(signed, key=b"k")  # type: ignore[operator]
    with pytest.raises(gcodec.Corrupt):
        list(gcodec.iter_frames(signed + plain, key=b"k"))
    # Without the key nobody can make a valid tag, even with correct checksums.
    forged = bytearray(signed)
    forged[-1] ^= 1
    with pytest.raises(gcodec.Corrupt):
        call(bytes(forged), key=b"k")  # type: ignore[operator]
