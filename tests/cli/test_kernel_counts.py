"""The announced numbers of kernels are about right, and appear in pipes and in terminals."""

from __future__ import annotations

import sys

import pytest

import gcodec
from gcodec.cli import options
from gcodec.cli.kernel_counts import CANDIDATES, COUNTS, expected
from gcodec.runtime import kernel_cache
from tools.kernel_counts import CODEC, EXAMPLE, INSPECT, measured


@pytest.mark.parametrize("spec", ["minmax", "ecsq"])
def test_counts_are_about_right(spec):
    assert measured(CODEC, spec) == pytest.approx(COUNTS[spec], rel=0.2, abs=2)


def test_the_count_of_candidates_is_about_right():
    assert measured(INSPECT, str(EXAMPLE)) == pytest.approx([CANDIDATES], rel=0.2)


def test_counts_are_found_by_spec():
    for spec in COUNTS:
        gcodec.parse(spec)
    assert expected("encode", {"spec": "ecsq:nmse=0.1"}) == (COUNTS["ecsq"][0], "ecsq")
    assert expected("inspect", {"specs": ("sign",), "max_nmse": None, "max_bits": None}) == (
        COUNTS["sign"][1],
        "sign",
    )
    trellis = expected("bench", {"specs": ("ecsq:nmse=0.1,trellis=yes",)})
    assert trellis == (COUNTS["ecsq:trellis=yes"][1], "ecsq")
    assert expected("inspect", {"specs": (), "max_nmse": 0.1, "max_bits": None}) == (
        CANDIDATES,
        "trying all codecs",
    )
    for verb, parameters in {
        "decode": {},
        "bench": {"specs": ("sign", "ecsq")},
        "encode": {"spec": "auto:nmse=0.1"},
    }.items():
        assert expected(verb, parameters) is None


def test_a_terminal_shows_the_position_of_a_kernel(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    loaded = []
    monkeypatch.setattr(kernel_cache, "loaded", lambda: loaded)
    announce = options._Announcement((4, "sign"))
    with announce("kernel"):
        pass
    loaded += [None] * 5
    with announce("another"):
        pass
    bar, full = "━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌", 20 * "━"
    assert capsys.readouterr().err == (
        f"\r\x1b[2Kcompiling kernel 1 of about 4 for sign, once {bar}\r\x1b[2K"
        f"\r\x1b[2Kcompiling kernel 6 of about 6 for sign, once {full}\r\x1b[2K"
    )
