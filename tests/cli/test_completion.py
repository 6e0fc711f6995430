"""What shells are told when a key is pressed, and what those that are there make of it."""

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
from gcodec.cli import shells
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


def told(line: str, shell: str = "bash") -> list[str]:
    """Ask as the script of a shell does; return the values."""
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


def test_verbs_and_options() -> None:
    assert "warmup" in told("gcodec ")
    assert told("gcodec bench x --so") == ["--sort"]
    assert told("gcodec bench x --sort de") == ["decode"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_specs(shell: str) -> None:
    gcodec.parse("raw")  # registers all
    names = set(told("gcodec encode x -c ", shell))
    assert names >= registered().keys()
    assert told("gcodec encode x -c qs", shell) == ["qsgd", "qsgd:"]
    assert told("gcodec encode x -c qsgd:s=15,b", shell) == ["qsgd:s=15,bucket="]
    assert "qsgd:form=dense" in told("gcodec inspect x --codec qsgd:form=", shell)
    assert told("gcodec encode x -c qsgd:form=dense,fo", shell) == [], "it is there already"
    assert told("gcodec encode x -c nope:", shell) == []


def test_bash_gets_what_is_behind_its_breaks() -> None:
    assert told("gcodec encode x -c qsgd:s=15,b") == ["15,bucket="]
    assert told("gcodec encode x -c qsgd:fo") == ["form="]
    assert told("gcodec encode x --codec=qsgd:form=de") == ["dense"]
    assert told("gcodec encode x -c top") == ["topk", "topk:"]


def test_names_of_tensors(tmp_path: Path) -> None:
    assert told(f"gcodec inspect {DUMP} -L layer3.conv1") == ["layer3.conv1.weight"]
    assert told(f"gcodec inspect {DUMP} -L !layer3.conv1", "zsh") == ["!layer3.conv1.weight"]
    frames = tmp_path / "a.gcf"
    values = np.ones(1, np.float32)
    x = gcodec.encode(values, "raw", name="a[0]")
    evil = gcodec.encode(values, "raw", name="a\x1b[31m")
    frames.write_bytes(x + evil)
    assert told(f"gcodec inspect {frames} -L a") == ["a[[]0]"]
    frames.write_bytes(x[:-1])
    assert told(f"gcodec inspect {frames} -L a") == []
    assert told("gcodec inspect nothing.npz -L a") == []


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
def test_bash(program: Path) -> None:
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
def test_scripts_are_valid(kind: type[ShellComplete]) -> None:
    source = kind(cli, {}, "gcodec", "_GCODEC_COMPLETE").source()
    assert f"_GCODEC_COMPLETE={kind.name}_complete" in source
    assert "%" not in source.replace("%q", "")
    found = shutil.which(kind.name)
    if found is not None:
        subprocess.run([found, "-n"], input=source, text=True, check=True)


@needs_a_shell
def test_fish(program: Path) -> None:
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
