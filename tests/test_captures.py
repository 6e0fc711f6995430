"""What the docs show of the command is what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import captures

SHOWN = [page for page in captures.PAGES if captures.commands(page)]


def test_there_are_captures() -> None:
    assert {page.name for page in SHOWN} >= {"README.md", "inspect.md"}


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_captures(page: Path) -> None:
    """If this fails for a reason: python -m tools.captures."""
    assert captures.captured(page) == page.read_text("utf-8")
