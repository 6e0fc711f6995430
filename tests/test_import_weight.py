"""Importing is light: nothing is loaded before it is needed, and no framework ever."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "numba", "llvmlite", "scipy", "torch", "matplotlib", "rich", "ml_dtypes", "jax")


def loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


def test_importing_gcodec_loads_nothing_heavy() -> None:
    assert loaded("import gcodec") == set()


def test_reading_a_frame_compiles_nothing() -> None:
    frame = "474346010001010104000020 1ca3b1a0 0000803f 00000000"  # its checksums are wrong
    code = (
        "import gcodec, contextlib\n"
        "with contextlib.suppress(gcodec.Corrupt):\n"
        f"    gcodec.Frame.from_bytes(bytes.fromhex({frame!r}))\n"
        "import sys"
    )
    assert loaded(code) == {"numpy", "ml_dtypes"}


def test_help_loads_nothing_heavy() -> None:
    code = "from gcodec.cli.main import main; main(['--help'], standalone_mode=False)"
    assert loaded(code) == set()


def test_no_framework_is_imported_by_coding() -> None:
    code = (
        "import gcodec, numpy as np; "
        "gcodec.decode(gcodec.encode(np.ones(3, np.float32), 'mxnet-2bit'))"
    )
    assert not loaded(code) & {"torch", "jax", "matplotlib"}


def test_every_public_name_is_there() -> None:
    code = "import gcodec; [getattr(gcodec, name) for name in gcodec.__all__]"
    loaded(code)
