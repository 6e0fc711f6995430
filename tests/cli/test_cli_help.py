"""The help of every verb: it is complete, fits, and its examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from example_files import make

from gcodec.cli.main import EXAMPLES, cli
from gcodec.cli.options import Verb
from gcodec.cli.outcome import EXIT_CODES

CONTEXT = click.Context(cli)
VERBS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}
each_verb = pytest.mark.parametrize("name", VERBS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    make(folder)
    return folder


def shown(*args: str, width: int = 80) -> str:
    result = CliRunner().invoke(cli, [*args, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.stdout


@each_verb
def test_help_has_all_sections(name: str) -> None:
    verb = VERBS[name]
    assert isinstance(verb, Verb)
    assert len(verb.examples) >= 2
    text = shown(name)
    sections = re.findall(r"^(\w[\w ]*):", text, re.MULTILINE)
    assert sections == ["Usage", "Options", "Examples", "Exit status"]
    assert verb.exits.keys() <= EXIT_CODES.keys() and {0, 2} <= verb.exits.keys()
    for purpose, command in verb.examples:
        assert purpose.endswith(".")
        assert f"    $ {command}\n" in text, "the command has its own line"
        words = shlex.split(command)
        assert words[:2] == ["gcodec", name]


@each_verb
def test_help_lines_fit_except_commands(name: str) -> None:
    for line in shown(name).splitlines():
        assert len(line) <= 80 or line.startswith("    $ ")


@each_verb
def test_every_option_has_help(name: str) -> None:
    for param in VERBS[name].params:
        if isinstance(param, click.Option):
            assert param.help and param.help.endswith("."), param.opts


def test_help_of_the_group(files: Path) -> None:
    text = shown()
    for shell in ("bash", "zsh", "fish"):
        assert f"_GCODEC_COMPLETE={shell}_source gcodec" in text
    for variable in ("NUM_THREADS", "KEPT_MIB", "CACHE_DIR", "CHECKED", "TARGET"):
        assert f"\n  GCODEC_{variable} " in text
    assert all(f"  {code}  {purpose}\n" in text for code, purpose in EXIT_CODES.items())
    assert all(f"\n  {name} " in text for name in VERBS)
    assert "...\n" not in shown(width=40).partition("\n")[2], "the purpose of a verb is cut"


def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit warmup to a few kernels, because compiling all of them takes too long."""
    from gcodec.runtime import jit

    kernels = jit.kernels()[:3]
    monkeypatch.setattr(jit, "kernels", lambda: kernels)


def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bench and advise measure small tensors once, because the tests ignore the times."""
    from gcodec.analysis import timing
    from gcodec.cli.verbs import advise

    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "_QUICK_ROUNDS", 1)
    monkeypatch.setattr(advise, "_MAX_ROWS", 256)
    (rounds,) = (param for param in VERBS["bench"].params if param.name == "rounds")
    monkeypatch.setattr(rounds, "default", 1)


EXAMPLE_COMMANDS = [
    *(command for _, command in EXAMPLES),
    *(command for verb in VERBS.values() for _, command in verb.examples),
]


@pytest.mark.parametrize("command", EXAMPLE_COMMANDS)
def test_examples_run(
    command: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example runs in a new directory."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path) if path.is_file() else copy_folder(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    if "warmup" in command:
        few_kernels(monkeypatch)
    if "bench" in command or "advise" in command:
        short_measurements(monkeypatch)
    _, *args = shlex.split(command)
    result = CliRunner().invoke(cli, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 0, result.output
    messages = [line for line in result.stderr.splitlines() if line.startswith("gcodec:")]
    assert all(line.startswith("gcodec: compiling kernels") for line in messages)


def copy_folder(folder: Path, target: Path) -> None:
    inner = target / folder.name
    inner.mkdir()
    for path in folder.iterdir():
        (inner / path.name).write_bytes(path.read_bytes())
