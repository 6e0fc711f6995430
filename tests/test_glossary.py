"""Test that every module in the glossary exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
MODULES = sorted(set(re.findall(r"`(gcodec[.\w]*)` \|$", GLOSSARY.read_text("utf-8"), re.M)))


@pytest.mark.parametrize("module", MODULES)
def test_modules_of_the_glossary_exist(module: str) -> None:
    path = ROOT.joinpath(*module.split("."))  # its framework need not be installed
    assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
