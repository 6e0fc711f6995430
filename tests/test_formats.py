"""Test the page of formats: specs, names, bits and errors of its tables, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_readme import bits_and_nmse

import gcodec
from gcodec.cli.main import cli

PAGE = (Path(__file__).parents[1] / "docs" / "formats.md").read_text("utf-8")
ROW = re.compile(r"^\| [^|]+\(`([\w-]+)`\) \|[^|]+\| `([^`]+)` \| ([\d.]+) \| ([^ ]+) \|", re.M)
SHORTER = re.compile(r"^\| (MX\w+(?: \w+)?|NVFP4) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
SPECS = {name: spec for name, spec, _, _ in ROWS}
PEERS = {name: spec for cls in gcodec.codecs().values() for name, spec in cls.peers.items()}


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["codecs", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("name", "spec", "bits", "nmse"), ROWS, ids=SPECS)
def test_table(name: str, spec: str, bits: str, nmse: str) -> None:
    assert gcodec.parse(PEERS[name]).name == gcodec.parse(spec).name
    measured_bits, measured_nmse = bits_and_nmse(spec)
    assert float(bits) == pytest.approx(float(measured_bits), abs=0.011)
    assert float(nmse) == pytest.approx(float(measured_nmse), rel=0.06)


def test_all_formats_of_blocks_are_in_the_table() -> None:
    specs = {gcodec.parse(spec).format for spec in SPECS.values() if "microscale" in spec}
    declared = gcodec.codecs()["microscale"].declared()[0]
    assert specs == set(declared.kind.words)


def test_shorter_bytes() -> None:
    rows = SHORTER.findall(PAGE)
    assert len(rows) == 7
    for title, plain, coded in rows:
        name = title.lower().replace(" ", "-")
        spec = SPECS[name]
        separator = "," if ":" in spec else ":"
        assert bits_and_nmse(spec)[0] == plain
        assert bits_and_nmse(f"{spec}{separator}code=auto")[0] == coded


def test_command() -> None:
    (shown,) = re.findall(r"^\$ gcodec codecs (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    assert run(*shown[0].split()) == shown[1]
    assert run("--like", "NVFP4") == run("--like", "nv-fp4") == shown[1]
    assert len(run("--like", "mxfp6").splitlines()) == 1
    assert len(run("--like", "mxfp").splitlines()) == 7
    document = json.loads(run("--like", "powersgd", "--json"))
    assert document["like"] == [{"name": "powersgd", "spec": "powersgd"}]
    result = CliRunner().invoke(cli, ["codecs", "--like", "nothing"])
    assert result.exit_code == 2 and "nvfp4" in result.output


@pytest.mark.parametrize(("name", "spec"), PEERS.items(), ids=PEERS)
def test_peers(name: str, spec: str) -> None:
    codec = gcodec.parse(spec)
    assert dict(type(codec).peers)[name] == spec
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)


def test_names_of_peers_are_unique() -> None:
    names = [name for cls in gcodec.codecs().values() for name in cls.peers]
    assert len(names) == len(set(names))
