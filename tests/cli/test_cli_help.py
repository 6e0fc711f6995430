"""The help of every verb: it is light, fits, and its examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from example_files import make

from gcodec.cli.main import EXAMPLES, cli
from gcodec.cli.verb import EXIT_CODES, Verb

CONTEXT = click.Context(cli)
VERBS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}
each_verb = pytest.mark.parametrize("name", VERBS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    make(folder)
    return folder


def shown(*args: str) -> str:
    result = CliRunner().invoke(cli, [*args, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.stdout


@each_verb
def test_sections(name: str) -> None:
    verb = VERBS[name]
    assert isinstance(verb, Verb)
    assert len(verb.examples) >= 2
    text = shown(name)
    sections = re.findall(r"^(\w[\w ]*):", text, re.MULTILINE)
    assert sections == ["Usage", "Options", "Examples", "Exit status"]
    assert verb.exits.keys() <= EXIT_CODES.keys() and {0, 2} <= verb.exits.keys()
    for what, command in verb.examples:
        assert what.endswith(".")
        assert f"    $ {command}\n" in text, "the command is on a line of its own"
        words = shlex.split(command)
        assert words[:2] == ["gcodec", name]


@each_verb
def test_lines_fit_but_for_commands(name: str) -> None:
    for line in shown(name).splitlines():
        assert len(line) <= 80 or line.startswith("    $ ")


@each_verb
def test_every_option_is_told_about(name: str) -> None:
    for param in VERBS[name].params:
        if isinstance(param, click.Option):
            assert param.help and param.help.endswith("."), param.opts


def test_the_group(files: Path) -> None:
    text = shown()
    for shell in ("bash", "zsh", "fish"):
        assert f"_GCODEC_COMPLETE={shell}_source gcodec" in text
    for variable in ("GCODEC_NUM_THREADS", "GCODEC_CACHE_DIR", "GCODEC_CHECKED"):
        assert variable in text
    assert all(f"  {code}  {what}\n" in text for code, what in EXIT_CODES.items())
    assert all(f"\n  {name} " in text for name in VERBS)


def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let warmup find few kernels: all of them are for a machine that has them compiled."""
    from gcodec.runtime import jit

    some = jit.kernels()[:3]
    monkeypatch.setattr(jit, "kernels", lambda: some)


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bench time everything but once: here, nobody looks at the times."""
    from gcodec.cli import timing

    monkeypatch.setattr(timing, "_LEAST", 0.0)
    (rounds,) = (param for param in VERBS["bench"].params if param.name == "rounds")
    monkeypatch.setattr(rounds, "default", 1)


EXAMPLE_COMMANDS = [
    *(command for _, command in EXAMPLES),
    *(command for verb in VERBS.values() for _, command in verb.examples),
]


@pytest.mark.parametrize("command", EXAMPLE_COMMANDS)
def test_examples(
    command: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each runs in a directory of its own, where nothing was written yet."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path) if path.is_file() else copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    if "warmup" in command:
        few_kernels(monkeypatch)
    if "bench" in command:
        hasty(monkeypatch)
    _, *args = shlex.split(command)
    result = CliRunner().invoke(cli, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 0, result.output
    assert not result.stderr.startswith("gcodec:")


def copy(folder: Path, target: Path) -> None:
    inner = target / folder.name
    inner.mkdir()
    for path in folder.iterdir():
        (inner / path.name).write_bytes(path.read_bytes())
