"""Print the numbers of kernels in ``gcodec/cli/kernel_counts.py``, each from a process of its own.

python tools/kernel_counts.py [SPEC]...
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gcodec.cli.kernel_counts import COUNTS

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet8_digits_step0300.safetensors"
CODEC = """
import sys
import numpy as np, gcodec
from gcodec.runtime import kernel_cache
x = np.random.default_rng(1).laplace(size=(64, 512)).astype(np.float32)
frame = gcodec.encode(x, sys.argv[1])
encode = len(kernel_cache.loaded())
gcodec.decode(frame)
print(encode, len(kernel_cache.loaded()))
"""
INSPECT = """
import sys
from gcodec.cli.main import main
from gcodec.runtime import kernel_cache
main(["inspect", "--quiet", "--max-nmse", "0.01", sys.argv[1]], standalone_mode=False)
print(len(kernel_cache.loaded()))
"""


def measured(program: str, argument: str) -> list[int]:
    """Return the numbers in the last line that a program prints."""
    command = [sys.executable, "-c", program, argument]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [int(word) for word in output.splitlines()[-1].split()]


def main() -> None:
    """Print the entries of the table."""
    for spec in sys.argv[1:] or COUNTS:
        print(f'    "{spec}": {tuple(measured(CODEC, spec))},', flush=True)
    if not sys.argv[1:]:
        print(f"CANDIDATES = {measured(INSPECT, str(EXAMPLE))[0]}")


if __name__ == "__main__":
    main()
