"""Coverage-guided fuzzing with atheris: ``python -m fuzz.guided TARGET``.

atheris instruments gcodec's Python code, but not its kernels, because Numba cannot compile
instrumented functions. Inputs with new coverage are saved in a folder, by default a temporary one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Fuzz one target until the time is over or an input fails; end the process."""
    try:
        import atheris
    except ImportError as error:
        raise ImportError("fuzzing by coverage needs atheris: pip install atheris") from error
    parser = argparse.ArgumentParser(prog="python -m fuzz.guided", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="folder for inputs with new coverage")
    options = parser.parse_args(arguments)
    with atheris.instrument_imports(
        include=["gcodec"], exclude=["gcodec.kernels", "gcodec.runtime"]
    ):
        from fuzz import run, targets
    if options.target not in targets.TARGETS:
        parser.error(f"TARGET is one of {', '.join(targets.TARGETS)}")
    folder = Path(options.folder or tempfile.mkdtemp(prefix="gcodec-guided-"))
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(run.corpus(options.target)):
        (folder / f"seed{number}").write_bytes(data)
    limits = [f"-max_total_time={options.seconds}", f"-max_len={run.LONGEST}", "-timeout=20"]
    try:
        atheris.Setup(
            [sys.argv[0], str(folder), f"-seed={options.seed}", *limits],
            lambda data: targets.run(options.target, data),
        )
        atheris.Fuzz()
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
