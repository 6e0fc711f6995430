"""Fuzzing: targets that accept any bytes, and engines that search for bytes which break them."""

import sys
from pathlib import Path

# The fuzzer uses the oracles of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
