"""Test that importing gcodec loads nothing before it is needed, and never a framework."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "jax", "tensorflow", "mlx", "cupy", "pandas"}
HEAVY = ("numpy", "numba", "llvmlite", "scipy", "matplotlib", "rich", "ml_dtypes", *FRAMEWORKS)


def loaded(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


def test_importing_gcodec_loads_nothing_heavy() -> None:
    assert loaded("import gcodec") == set()


def test_adapters_wait_for_their_own_import() -> None:
    code = (
        "import gcodec\n"
        "assert not hasattr(gcodec, 'torch')\n"
        "try:\n"
        "    gcodec.torch\n"
        "except AttributeError as error:\n"
        "    assert str(error).endswith(\"no attribute 'torch': import gcodec.torch first\")"
    )
    assert loaded(code) == set()


def test_reading_a_frame_compiles_nothing() -> None:
    frame = "474346010001010104000020 1ca3b1a0 0000803f 00000000"  # invalid checksums
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


EVERY_KIND_OF_ARRAY = """
import array
import gcodec, numpy as np

class Other:
    def __init__(self):
        self.dtype, self.shape = x.dtype, x.shape

    def __array__(self, dtype=None, copy=None):
        return x

class Exporter:
    def __dlpack__(self, **kwargs):
        return x.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return x.__dlpack_device__()

x = np.ones(3, np.float32)
for given in (x, np.float32(1), array.array("f", x), memoryview(x), Exporter(), Other()):
    frame = gcodec.encode(given, "mxnet-2bit", out=None)
    gcodec.Feedback("mxnet-2bit").compress("w", given)
    gcodec.decode(frame)
frame = gcodec.encode(x, "mxnet-2bit")
gcodec.encode(x, "mxnet-2bit", out=bytearray(99))
gcodec.decode(frame, like=np.zeros(3))
gcodec.decode(frame, like=Other())
gcodec.decode(frame, out=array.array("f", x))
gcodec.decode_add(frame, x)
for wrong in (np.ones(3, int), [1.0], object(), np.ma.masked_less(x, 0)):
    try:
        gcodec.encode(wrong, "mxnet-2bit")
    except TypeError:
        continue
    raise AssertionError(wrong)
"""


def test_coding_imports_no_framework() -> None:
    assert not loaded(EVERY_KIND_OF_ARRAY) & {*FRAMEWORKS, "matplotlib"}


@pytest.mark.parametrize("module", ["torch", "jax", "tensorflow", "mlx.core"])
def test_frameworks_import_no_other_framework(module: str) -> None:
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    code = (
        f"import {module}\nbefore = set(sys.modules)\n{EVERY_KIND_OF_ARRAY}\n"
        f"brought = {FRAMEWORKS!r} & (set(sys.modules) - before)\nassert not brought, brought"
    )
    assert top in loaded(code)


def test_a_codec_imports_no_other_codec() -> None:
    code = (
        "import gcodec, numpy as np\n"
        "gcodec.decode(gcodec.encode(np.ones(3, np.float32), 'minmax'))\n"
        "codecs = {m.split('.')[2] for m in sys.modules if m.startswith('gcodec.codecs.')}\n"
        "assert codecs == {'minmax'}, codecs"
    )
    loaded(code)


def test_modules_of_codecs_are_attributes() -> None:
    code = (
        "import gcodec\n"
        "assert callable(gcodec.codecs.dct8.to_panthalia)\n"
        "assert gcodec.codecs.patch.Patch is gcodec.codecs.Patch\n"
        "assert not hasattr(gcodec.codecs, 'absent')\n"
        "assert {'MXNet1Bit', 'Patch', 'Sign', 'mxnet', 'parse'} <= {*dir(gcodec.codecs)}"
    )
    loaded(code)


def test_every_public_name_exists() -> None:
    code = "import gcodec; [getattr(gcodec, name) for name in gcodec.__all__]"
    loaded(code)
