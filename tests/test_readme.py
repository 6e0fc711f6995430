"""Test that the README and the documentation are true: code, commands, tables and links."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rank_processes import run_programs

import gcodec
from gcodec.tensorfiles.dumps import open_dump
from tools.captures import captures
from tools.site_pages import HELP, help_of_every_verb

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLE = "examples/resnet8_digits_step0300.safetensors"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
RELEASES = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1:]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def lines(text: str) -> list[str]:
    """Return the lines of shell blocks, and those of console blocks without their prompt."""
    shell = [line for block in blocks(text, "sh") for line in block.splitlines()]
    console = [line for block in blocks(text, "console") for line in block.splitlines()]
    shell += [line[2:] for line in console if line.startswith("$ ")]
    return [line for line in shell if line.strip() and not line.startswith("#")]


def test_installation_is_one_line() -> None:
    """The two commands name existing files, and the checks run the same tests."""
    fresh = [line for line in lines(README) if "venv" in line]
    assert fresh == [
        f"python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/gcodec inspect {EXAMPLE}",
        "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/python -m pytest",
    ]
    assert (ROOT / EXAMPLE).is_file()
    checks = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "python -m pytest" in checks or 'python" -m pytest' in checks
    assert "install '.[test]'" in checks
    assert f'gcodec inspect "$top/{EXAMPLE}"' in checks


@pytest.mark.parametrize("page", ["README.md", "docs/command.md", "docs/files.md"])
def test_commands(page: str, tmp_path: Path) -> None:
    """Every call of the command on a page succeeds, one after another in a new folder."""
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / EXAMPLE, tmp_path / "examples")
    calls = []
    for line in lines((ROOT / page).read_text("utf-8")):
        for part in line.split("&&"):
            words = shlex.split(part)
            if Path(words[0]).name == "gcodec":
                calls.append(words[1:])
            else:
                assert words[1:3] in (["-m", "venv"], ["-m", "pytest"]) or words[1] == "install"
    assert calls
    program = (
        "import json, sys\n"
        "from gcodec.cli.main import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    assert not main(words, standalone_mode=False), words\n"
    )
    (done,) = run_programs([["-c", program, json.dumps(calls)]], tmp_path, [{}])
    assert done.status == 0, done.errors
    if page == "docs/command.md":
        assert (tmp_path / "two-bit.gcf").is_file()
        assert (tmp_path / "two-bit.safetensors").is_file()


def test_shown_output() -> None:
    """The README shows the output of one call, which ``test_captures.py`` compares exactly."""
    (block,) = blocks(README, "text")
    assert block.startswith("$ gcodec ")
    ((call, shown),) = captures(ROOT / "README.md")
    assert f"$ {call}\n{shown}" == block


def run_python(page: str) -> None:
    """Run the Python blocks of a page as one program; compare its output with ``# prints``.

    The quick starts of the README are programs of their own; the tests of the frameworks run them.
    """
    text = (ROOT / page).read_text("utf-8")
    text = re.sub(r"^## Quick starts\n.*?(?=^## )", "", text, flags=re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks(text, "python"))
    assert code
    (done,) = run_programs([["-c", code]], ROOT, [{}])
    assert done.status == 0, done.errors
    assert done.output.splitlines() == re.findall(r"# prints (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/add-a-codec.md",
        "docs/minifloat.md",
        "docs/dct8.md",
        "docs/formats.md",
        "docs/interop.md",
        "docs/grace.md",
        "docs/advise.md",
        "docs/advise-exercises.md",
        "docs/ecsq.md",
        "docs/lowrank.md",
        "docs/lossless.md",
        "docs/patch.md",
        "docs/inspect.md",
        "docs/training.md",
        "docs/dissect.md",
        "docs/codecs.md",
        "docs/federated.md",
        "docs/files.md",
        "docs/reliability.md",
    ],
)
def test_python_blocks(page: str) -> None:
    run_python(page)


def test_own_codec_works_in_the_command_and_passes_the_laws(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "add-a-codec.md").read_text("utf-8")
    (tmp_path / "own.py").write_text(blocks(page, "python")[0])
    commands = [shlex.split(line) for block in blocks(page, "text") for line in block.splitlines()]
    inspect, bench, laws = commands
    assert inspect[0] == bench[0] == laws[2] == "python" and laws[0] == "PYTHONPATH=."
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    environment |= [laws[1].split("=")]  # the only codec that is drawn
    layers = ["-L", "fc.*"]
    for words in ([*inspect[1:], *layers], [*bench[1:], *layers], [*laws[3:], "-n", "0"]):
        words = [word.replace("grads.safetensors", EXAMPLE) for word in words]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout or "own-int8" in done.stdout


@functools.cache
def example_tensors() -> dict[str, np.ndarray]:
    with open_dump(ROOT / EXAMPLE) as dump:
        return {entry.name: dump.load(entry) for entry in dump.entries}


def bits_and_nmse(spec: str) -> tuple[str, str]:
    """Return bits per value and nmse of a codec on the whole example, as the tables print them."""
    tensors = example_tensors()
    nbytes, error, total = 0, 0.0, 0.0
    for key, x in tensors.items():
        frame = gcodec.encode(x, spec, name=key)
        nbytes += len(frame)
        error += float(((x.astype(np.float64) - gcodec.decode(frame)) ** 2).sum())
        total += float((x.astype(np.float64) ** 2).sum())
    size = sum(x.size for x in tensors.values())
    return f"{8 * nbytes / size:.2f}", f"{error / total:.2g}"


def test_table_of_codecs() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| [^|]+ \| ([\d.]+) \| ([\d.e+-]+) \| (.*) \|$",
        (ROOT / "docs" / "codecs.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(example_tensors()) == 29
    for spec, bits, nmse, section in rows:
        name = gcodec.parse(spec).name
        assert section == f"[{name}](wire-format.md#{name})"
        assert bits_and_nmse(spec) == (bits, nmse), spec
    own = range(192, 256)
    codecs = {name for name, cls in gcodec.codecs().items() if cls.id not in own}
    assert {gcodec.parse(row[0]).name for row in rows} == codecs


def test_codecs_to_choose_from() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `([^`]+)` \| ([\d.]+) \| ([\d.e+-]+) \| [^|]+ \| [^|]+ \|$",
        README,
        re.MULTILINE,
    )
    assert len(rows) == 6
    for spec, *measured in rows:
        assert bits_and_nmse(spec) == tuple(measured), spec


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, and the objects of the reference."""
    text = page.read_text("utf-8")
    if HELP in text:  # the site adds the help of every verb
        text = text.replace(HELP, help_of_every_verb())
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    return anchors | {*re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    text = page.read_text("utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.is_file(), target
        assert not anchor or anchor in anchors_of(path.resolve()), target


def test_environment_variables_are_documented() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "gcodec").rglob("*.py"))
    used = set(re.findall(r"environ(?:\.get\(|\[)\"(GCODEC_\w+)\"", source))
    page = (ROOT / "docs" / "environment.md").read_text("utf-8")
    assert used == set(re.findall(r"^\| `(GCODEC_\w+)` \|", page, re.MULTILINE))


def test_changelog_begins_with_the_wire_format() -> None:
    for release in RELEASES:
        assert re.findall(r"^### (.+)$", release, re.MULTILINE)[0] == "Wire format"


def test_version_and_date_agree() -> None:
    """The changelog, the citation and the package name the same release, if it has a date."""
    version, date = RELEASES[0].split("\n")[0].split(" - ")
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert version == gcodec.__version__
    assert f"\nversion: {version}\n" in citation
    dates = re.findall(r"^date-released: (.+)$", citation, re.MULTILINE)
    assert dates == ([] if date == "unreleased" else [date])
