"""Test that pages of the documentation show the actual output of the command."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from gcodec.cli.main import cli
from tools import captures

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "inspect.md"
EXAMPLE = "examples/resnet8_digits_step0300.safetensors"
# Number of captures of each page.
PAGES = {"README.md": 1, "docs/advise.md": 1, "docs/dissect.md": 3, "docs/inspect.md": 3}
SHOWN = [(page, call, shown) for page in PAGES for call, shown in captures.captures(ROOT / page)]


def test_captures_exist() -> None:
    assert Counter(page for page, *_ in SHOWN) == PAGES


@pytest.mark.parametrize(("page", "call", "shown"), SHOWN, ids=[call for _, call, _ in SHOWN])
def test_captures(page: str, call: str, shown: str) -> None:
    """After an intended change, run ``python tools/captures.py PAGE``."""
    assert captures.output(call) == shown, page


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    calls = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(calls) >= 3
    (tmp_path / "examples").mkdir()
    for name in (EXAMPLE, "examples/mlp_digits_run"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    for call in calls:
        few = ["-L", "fc.*"] if "--report" in call else []  # diagrams take long to draw
        result = CliRunner().invoke(cli, [*call[1:], *few])
        assert call[0] == "gcodec" and result.exit_code == 0, result.output
    assert (tmp_path / "report.html").stat().st_size > 10_000
