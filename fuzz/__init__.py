"""Fuzzing: targets that take any bytes, and engines that look for bytes which break them."""

import sys
from pathlib import Path

# The oracles of the tests are those of the fuzzer.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
