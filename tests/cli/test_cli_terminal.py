"""The command in a terminal of 80 columns: cut columns are named, and bars share no lines."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from typing import NoReturn

import pytest
from example_files import DUMP as EXAMPLE
from example_files import ROOT

from gcodec.analysis.typical import TYPICAL
from gcodec.cli.options import _Announcement, verb
from gcodec.cli.outcome import LIMIT, Outcome
from gcodec.limits import Limits
from gcodec.runtime import jit, kernel_cache, processor

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

FRAMES = ROOT / "examples" / "fc.gcf"
_CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")
_PROGRAM = """
import sys
from gcodec.cli.render import output
output._PROGRESS_DELAY = {delay}
from gcodec.cli.main import main
sys.exit(main(sys.argv[1:], standalone_mode=False))
"""


def shown(*args: object, delay: float = 60.0, columns: int = 80) -> str:
    """Run the command in a terminal; return what it writes, with control sequences."""
    leader, follower = os.openpty()
    # Rows and columns; the other numbers are pixels.
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    program = [sys.executable, "-c", _PROGRAM.format(delay=delay), *map(str, args)]
    with subprocess.Popen(program, stdout=follower, stderr=follower, env=environment) as running:
        os.close(follower)
        parts = []
        with contextlib.suppress(OSError):  # Linux raises EIO at the end
            while part := os.read(leader, 1 << 16):
                parts.append(part)
    os.close(leader)
    text = b"".join(parts).decode().replace("\r\n", "\n")
    assert running.returncode == 0, text
    return text


def lines(text: str) -> list[str]:
    return _CONTROL.sub("", text).splitlines()


def test_inspect_names_columns_that_do_not_fit():
    actual = lines(shown("inspect", EXAMPLE, "--top", "1"))
    (note,) = (line for line in actual if line.startswith("not shown at 80 columns: shape, dtype"))
    assert note.endswith("; use --width N or --json")
    assert all(len(line) <= 80 for line in actual[1 : actual.index(note)])


@pytest.mark.parametrize(
    ("args", "headers"),
    [
        (("inspect", EXAMPLE, "-L", "fc.*"), ["tensor", "rms", "at", "0.01"]),
        (
            ("inspect", EXAMPLE, "-L", "fc.weight", "-c", "sign", "--max-bits", "40"),
            ["tensor", "bits/v", "nmse", "bits/v", "≤", "40"],
        ),
        (
            ("bench", EXAMPLE, "-c", "sign", "--rounds", "1"),
            ["codec", "bits/v", "nmse", "Gbit/s"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_tables_fit_into_forty_columns(args, headers):
    _, *table = lines(shown(*args, columns=40))
    del table[next(i for i, line in enumerate(table) if line.startswith("not shown at 40 ")) :]
    assert all(len(line) <= 40 for line in table), table
    assert headers in [line.split() for line in table]


def test_codecs_fit_with_their_purposes():
    actual = lines(shown("codecs"))
    table = actual[: actual.index("")]
    assert len(table) == 1 + len([*TYPICAL, "patch"]) and all(len(line) <= 80 for line in table)
    assert table[0].split() == ["codec", "id", "bits/v", "nmse", "purpose"]
    assert actual[-1] == "not shown at 80 columns: parameters and their defaults; use --json"


def test_dissect_notes_cut_cells():
    actual = lines(shown("dissect", FRAMES, "-L", "fc.bias"))
    assert actual[-1] == "cells with … are cut at 80 columns; use --json"
    assert any("…" in line for line in actual[:-1])


@pytest.mark.parametrize(
    ("columns", "omitted"),
    [
        (71, []),
        (61, ["raw"]),
        (50, ["raw", "meaning"]),
        (39, ["bits", "raw", "meaning"]),
        (30, ["offset", "bits", "raw", "meaning"]),
    ],
)
def test_dissect_shows_values_in_narrow_terminals(columns, omitted):
    args = ["dissect", FRAMES, "-L", "fc.bias", "--limit", "2"]
    title, headers, *table = lines(shown(*args, columns=columns))
    assert title.startswith("fc.gcf   ")
    names = ["offset", "bits", "field", "raw", "value", "meaning"]
    assert headers.split() == [name for name in names if name not in omitted]
    place = headers.index("value")
    assert [line[place:].split()[0] for line in table[1:4]] == ["1", "1", "2"]  # version and on
    notes = [line for line in table if line.startswith("not shown at ")]
    listed = f"not shown at {columns} columns: {', '.join(omitted)}; use --json"
    assert notes == ([listed] if omitted else [])


def test_dissect_shows_bits_in_narrow_terminals_if_they_are_requested():
    args = ["dissect", FRAMES, "-L", "fc.bias", "--limit", "2", "--bits"]
    headers = lines(shown(*args, columns=61))[1]
    assert headers.split() == ["offset", "bits", "field", "raw", "value"]


def test_doctor_prints_rows_after_the_bar_has_closed():
    text = shown("doctor", delay=0)
    assert "self-test" in text and text.rindex("self-test") < text.index("codec raw")
    rows = [line for line in lines(text) if line.startswith("ok      codec ")]
    assert len(rows) == len(TYPICAL)


def test_inspect_opens_its_bar_before_heavy_imports():
    text = shown("inspect", EXAMPLE, "--top", "1", delay=0)
    assert 0 <= text.find("loading gcodec") < text.index("29 tensors")


def test_bar_leaves_its_line_to_a_compilation(tmp_path, monkeypatch):
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "kernels"))
    text = shown("encode", EXAMPLE, "-c", "sign", "-o", tmp_path / "small.gcf", delay=0)
    written = text.split("\x1b[2K")
    for part in ("compiling kernel", "small.gcf \x1b"):
        assert any(part in erased for erased in written)
    assert not any("compiling" in erased and "small.gcf" in erased for erased in written)


def test_announcement_of_a_compilation_fits_in_one_line(monkeypatch, capsys):
    """A terminal erases a line, but not one that it has wrapped."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    announce = _Announcement((30, "minifloat"))
    with announce("kernel"):
        pass
    begun, erased = capsys.readouterr().err.split("\r\x1b[2K")[1:]
    assert begun.startswith("compiling kernel ") and len(begun) == 39
    assert erased == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_line_of_a_failed_compilation_is_erased(error, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(error), _Announcement(None)("kernel"):
        raise error
    assert re.fullmatch(r"\r\x1b\[2Kcompiling kernels?, .*\r\x1b\[2K", capsys.readouterr().err)


def test_a_failed_compilation_is_reported_on_a_line_of_its_own(monkeypatch, capsys):
    """The verb reports the error itself, while it goes on with other files."""
    from gcodec.runtime import compiler

    def fail(kernel: object, processor: object, checked: bool) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(compiler, "loop_code", fail)

    @verb("verify")
    def failing() -> int:
        """Compile a kernel that is not in the cache."""
        outcome = Outcome("verify", Limits())
        with outcome.of("a.gcf"):
            kernel_cache._compiler_of(jit.kernels()[0])(processor.target())
        return outcome.code

    assert failing.invoke(failing.make_context("verify", [])) == LIMIT
    *_, last = capsys.readouterr().err.split("\r\x1b[2K")
    assert last == "gcodec: a.gcf: there is not enough memory\n"
