"""Names and numbers in the output of the command, and its progress bar."""

from __future__ import annotations

import io
import math
import os
import shutil
import subprocess
import sys
import time

import pytest

from gcodec.analysis.groups import selects
from gcodec.cli.render import output, text


def test_printable_escapes_control_characters():
    assert text.printable("a\x1b[31m\n\t\x9b\u202e\u200b\ud800") == (
        r"a\x1b[31m\n\t\x9b\u202e\u200b\ud800"
    )
    assert text.printable("h.0 ü 漢 [b]") == "h.0 ü 漢 [b]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_commands_are_read_by_a_shell_as_they_were_joined():
    words = ["plain", "two words", "it's", "new\nline", "\x1b[31m", "a\\b\n", "'\t'", "$x", "é\n"]
    words += ["\xa0a", "\u202e1", "\U000e0001", os.fsdecode(b"\xff\\"), "\\udcff\n"]
    joined = text.command(words)
    assert joined.isprintable()
    script = f"printf '%s\\0' {joined}"
    read = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert os.fsdecode(read).split("\0")[:-1] == words


def test_shorten_keeps_both_ends():
    assert text.shorten("abcdefghij", 10) == "abcdefghij"
    assert text.shorten("abcdefghijk", 10) == "abcd…ghijk"
    assert len(text.shorten("x" * 99, 16)) == 16
    assert text.shorten("漢字漢字漢字漢字", 9) == "漢字…漢字"  # a character takes two columns
    assert text.shorten_end("漢字漢字漢字漢字", 9) == "漢字漢字…"


def test_title_of_omitted_columns_moves_to_their_group(capsys):
    titles = (
        ("", 0),
        ("by law:\ndelta", 2),
        ("\nomega", 3),
        ("\nbound", 0),
        ("measured:\nbound", 0),
    )
    columns = [output.Column(title, lambda row: row, rank=rank) for title, rank in titles]
    table = output.Table(columns, ["12345"])
    for width, names in ((44, "delta omega bound"), (37, "delta bound"), (24, "bound")):
        table.show(output.stdout(width))
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["by", "law:", "measured:"]
        assert lines[1].split() == [*names.split(), "bound"]


def test_sparkline_is_logarithmic():
    assert text.sparkline((0, 1, 10, 100, 1000)) == " ▁▃▆█"
    assert text.sparkline((0, 0)) == "  "
    assert text.sparkline((1, 1)) == "▁▁"


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        ((1 << 20) - 52, "1023.9 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        ((1 << 40) - 1, "1.0 TiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_size_format(nbytes, expected):
    assert text.size(nbytes) == expected


def test_number_formats():
    assert [text.small(v) for v in (None, math.nan, 0, 1e-7, math.inf)] == [
        *("-", "-", "0", "1.0e-07", "inf")
    ]
    assert [
        text.percent(*v) for v in ((0, 0), (0, 9), (9, 9), (1, 10**6), (10**6 - 1, 10**6))
    ] == [*("-", "0", "100", "<0.1", ">99.9")]
    assert text.percent(1, 8) == "12.5"
    assert (text.count(1, "frame"), text.count(1234, "frame")) == ("1 frame", "1,234 frames")
    assert (text.shape(()), text.shape((2, 3))) == ("scalar", "2x3")
    assert text.fixed(None) == "-"
    cosines = [text.cosine(value) for value in (1, -1, -1e-9, -6e-7, math.nan)]
    assert cosines == ["1.000000", "-1.000000", "0.000000", "-0.000001", "-"]
    speeds = 0, 98e6, 1e9, 9.94e9, 9.96e9, 156e9, 1.234e12, math.inf
    expected = "never", "0.098", "1", "9.9", "10", "160", "1,200", "inf"
    assert tuple(map(text.pays_below, speeds)) == expected


def test_layer_selection():
    assert selects((), "a")
    assert selects(("*.weight",), "fc.weight") and not selects(("*.weight",), "fc.bias")
    assert not selects(("!fc*",), "fc.bias") and selects(("!fc*",), "conv.bias")
    assert not selects(("*.bias", "!fc*"), "fc.bias") and selects(("a", "b"), "b")
    assert not selects(("A",), "a")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "delay", "shown"),
    [
        (Terminal, False, -1.0, True),
        (Terminal, False, 60.0, False),
        (Terminal, True, -1.0, False),
        (io.StringIO, False, -1.0, False),
    ],
)
def test_progress_appears_for_long_work_in_a_terminal(monkeypatch, stream, quiet, delay, shown):
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(output, "_PROGRESS_DELAY", delay)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("[red]\x1b]0;evil", 10, quiet=quiet) as advance:
        deadline = time.monotonic() + 60
        while shown and not stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.001)  # the bar opens before any work is done
        advance(4)
        advance(6)
    assert bool(stderr.getvalue()) == shown
    assert "\x1b]0" not in stderr.getvalue()
    assert ("[red]" in stderr.getvalue()) == shown
