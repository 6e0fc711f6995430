"""Test that every module in the glossary exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"
MODULES = sorted(set(re.findall(r"`(gcodec[.\w]*)` \|$", GLOSSARY.read_text("utf-8"), re.M)))


@pytest.mark.parametrize("module", MODULES)
def test_modules_of_the_glossary_exist(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
