"""Draw the classes that `ecsq` assigns to the elements of a tensor, as in docs/ecsq.md.

    python -m bench.class_map FILE TENSOR OUT.png

A class is the magnitude that the scales of row and column predict, in quarter octaves.
"""

from __future__ import annotations

import argparse

import numpy as np

import gcodec
from bench.rd_plot import require_matplotlib
from gcodec.entropy.context.scale_model import ONE
from gcodec.tensorfiles.dumps import open_dump

ERROR = 0.02


def classes(x: np.ndarray) -> np.ndarray:
    """Return the classes of a tensor as a matrix, in octaves relative to a magnitude of 1."""
    scales = gcodec.parse(f"ecsq:nmse={ERROR}").quantize(x).scales
    width = scales.layout.width
    rows = x.size // width
    class_array = scales.classes(0, rows * width, np.empty(rows * width, np.uint8))
    octaves: np.ndarray = (class_array.reshape(rows, width).astype(np.float64) - ONE) / 4
    return octaves


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.class_map", description=__doc__)
    parser.add_argument("file", help="dump that contains the tensor")
    parser.add_argument("tensor", help="name of the tensor")
    parser.add_argument("target", metavar="OUT.png", help="picture to write")
    options = parser.parse_args()
    require_matplotlib()
    import matplotlib.pyplot as plt

    with open_dump(options.file) as dump:
        entry = next(e for e in dump.entries if e.name == options.tensor)
        x = np.asarray(dump.load(entry), np.float32)
    size = np.log2(np.maximum(np.abs(x.reshape(x.shape[0], -1)), 1e-12))
    figure, axes = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
    pictures = ((size, "log2 |x|", size.max() - 9), (classes(x), "class, in octaves", None))
    for ax, (image, label, low) in zip(axes, pictures, strict=True):
        shown = ax.imshow(image, aspect="auto", interpolation="nearest", vmin=low, cmap="viridis")
        figure.colorbar(shown, ax=ax, label=label)
        ax.set_ylabel("row")
    axes[-1].set_xlabel("column")
    figure.savefig(options.target, dpi=60, facecolor="white")


if __name__ == "__main__":
    main()
