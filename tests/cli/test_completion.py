"""Completion, and the scripts of the installed shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from example_files import DUMP, ROOT

import gcodec
from gcodec.cli import options, shells
from gcodec.cli.main import cli
from gcodec.codec import registered

PROGRAM = f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m gcodec "$@"\n'
needs_a_shell = pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "gcodec"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path.parent


def completions(line: str, shell: str = "bash") -> list[str]:
    """Request completions as the script of a shell does, and return the values."""
    words = line.split()
    last = "" if line.endswith(" ") else words[-1]
    variables = {
        "bash": {"COMP_LINE": line, "COMP_WORDBREAKS": " \t\n\"'><=;|&(:"},
        "zsh": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - (last != ""))},
        "fish": {"COMP_WORDS": line, "COMP_CWORD": last},
    }[shell]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        kind = {"bash": shells.Bash, "zsh": shells.Zsh, "fish": shells.Fish}[shell]
        answer = kind(cli, {}, "gcodec", "_GCODEC_COMPLETE").complete()
    lines = answer.splitlines()
    if shell == "zsh":
        assert len(lines) % 3 == 0
        return lines[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


def test_verbs_and_options_complete() -> None:
    assert "warmup" in completions("gcodec ")
    assert completions("gcodec bench x --so") == ["--sort"]
    assert completions("gcodec bench x --sort de") == ["decode"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_specs_complete(shell: str) -> None:
    names = set(completions("gcodec encode x -c ", shell))
    assert names >= registered().keys()
    assert completions("gcodec encode x -c qs", shell) == ["qsgd", "qsgd:"]
    assert completions("gcodec encode x -c au", shell) == ["auto:nmse=", "auto:bits="]
    assert completions("gcodec inspect x -c au", shell) == [], "inspect chooses no codec"
    assert completions("gcodec encode x -c qsgd:s=15,b", shell) == ["qsgd:s=15,bucket="]
    assert "qsgd:form=dense" in completions("gcodec inspect x --codec qsgd:form=", shell)
    assert completions("gcodec encode x -c qsgd:form=dense,fo", shell) == [], (
        "the parameter is present already"
    )
    assert completions("gcodec encode x -c nope:", shell) == []


def test_names_of_peers_and_machines_complete() -> None:
    assert completions("gcodec codecs --like mxfp4") == ["mxfp4"]
    assert completions("gcodec advise --machine ") == ["this", "epyc-zen4", "h100", ""]
    assert completions("gcodec advise --machine h") == ["h100", "h"]  # or a file


def test_bash_gets_the_text_after_word_breaks() -> None:
    assert completions("gcodec encode x -c qsgd:s=15,b") == ["15,bucket="]
    assert completions("gcodec encode x -c qsgd:fo") == ["form="]
    assert completions("gcodec encode x --codec=qsgd:form=de") == ["dense"]
    assert completions("gcodec encode x -c top") == ["topk", "topk:"]


def test_tensor_names_complete(tmp_path: Path) -> None:
    assert completions(f"gcodec inspect {DUMP} -L layer3.conv1") == ["layer3.conv1.weight"]
    assert completions(f"gcodec inspect {DUMP} -L !layer3.conv1", "zsh") == [
        "!layer3.conv1.weight"
    ]
    frames = tmp_path / "a.gcf"
    values = np.ones(1, np.float32)
    x = gcodec.encode(values, "raw", name="a[0]")
    evil = gcodec.encode(values, "raw", name="a\x1b[31m")
    frames.write_bytes(x + evil)
    assert completions(f"gcodec inspect {frames} -L a") == ["a[[]0]"]
    frames.write_bytes(x[:-1])
    assert completions(f"gcodec inspect {frames} -L a") == []
    files = [tmp_path / f"{letter}.npz" for letter in "bcd"]
    for file in files:
        np.savez(file, **{f"{file.stem}{k}": values for k in range(300)})
    line = " ".join(["gcodec inspect", *map(str, files), "-L "])
    assert len(completions(line)) == options._MAX_NAMES
    assert completions("gcodec inspect nothing.npz -L a") == []


BASH = """
compopt() { :; }
eval "$(_GCODEC_COMPLETE=bash_source gcodec)"
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE}
    COMPREPLY=()
    _gcodec_completion gcodec
    (IFS='|'; echo "${COMPREPLY[*]}")
done
"""
LINES = {
    "gcodec encode x -c qsgd:s=15,b": "15,bucket=",
    f"gcodec inspect {DUMP} -L layer3.conv1": "layer3.conv1.weight",
    "gcodec encode x -c sig": "sign|sign:",
}


@needs_a_shell
def test_bash_script(program: Path) -> None:
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [bash, "--norc", "-c", BASH, "bash", *LINES],
        env=environment(program),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == list(LINES.values())


@pytest.mark.parametrize("kind", [shells.Bash, shells.Zsh, shells.Fish])
def test_scripts_have_valid_syntax(kind: type[ShellComplete]) -> None:
    source = kind(cli, {}, "gcodec", "_GCODEC_COMPLETE").source()
    assert f"_GCODEC_COMPLETE={kind.name}_complete" in source
    assert "%" not in source.replace("%q", "")
    shell_path = shutil.which(kind.name)
    if shell_path is not None:
        subprocess.run([shell_path, "-n"], input=source, text=True, check=True)


@needs_a_shell
def test_fish_script(program: Path) -> None:
    if (fish := shutil.which("fish")) is None:
        pytest.skip("there is no fish")
    line = "gcodec encode x -c qsgd:s=15,b"
    script = f"_GCODEC_COMPLETE=fish_source gcodec | source; complete -C '{line}'"
    done = subprocess.run(
        [fish, "--no-config", "-c", script],
        env=environment(program),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("qsgd:s=15,bucket=\t")


def test_completion_after_an_unknown_verb() -> None:
    assert "inspect" in completions("gcodec nope ")
