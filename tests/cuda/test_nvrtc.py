"""Test that every kernel compiles, does not spill, and uses few registers; see gate.py."""

from __future__ import annotations

from pathlib import Path

import gate
import nvrtc
import pytest
import shim
from sweeps import LONG
from test_page import PAGE

from gcodec.runtime.device import LEAST_ARCHITECTURE, sources

# The oldest, the most used and the newest, which needs NVRTC 12.8 or newer. They take turns: each
# file is compiled for one of them. A long run compiles each file for all that gate.py has.
ARCHITECTURES = (LEAST_ARCHITECTURE, 90, 120)
FILES = dict(enumerate(sources().values()))


@pytest.fixture(scope="module")
def compiler() -> nvrtc.Compiler:
    actual = nvrtc.installed()
    if actual is None:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed")
    return actual


@pytest.mark.parametrize(
    "number", [pytest.param(number, id=path.stem) for number, path in FILES.items()]
)
def test_kernels(compiler: nvrtc.Compiler, number: int) -> None:
    common = [a for a in compiler.architectures if a in ARCHITECTURES]
    for architecture in compiler.architectures if LONG else [common[number % len(common)]]:
        result = gate.check(compiler, FILES[number], architecture)
        assert not result.problems
        assert result.kernels


def test_kernel_names_are_unique() -> None:
    names = [name for _, name in shim.kernels()]
    assert len(names) == len(set(names))
    lists = {*gate.MORE_REGISTERS, *gate.STACK}
    assert lists <= set(names)  # the lists contain only existing kernels


# Sixty sums are live at once, and there are too few registers for them.
BODY = """
    unsigned long long sums[60];
#pragma unroll
    for (int k = 0; k < 60; ++k) sums[k] = in[k] * in[k + 1];
#pragma unroll
    for (int k = 0; k < 60; ++k) sums[k] = sums[k] * sums[(k * 7 + 3) % 60] + sums[59 - k];
#pragma unroll
    for (int k = 0; k < 60; ++k) out[k] = sums[k];
"""
PARAMETERS = "const unsigned long long* in, unsigned long long* out"


def problems(compiler: nvrtc.Compiler, path: Path, text: str) -> list[str]:
    path.write_text(text)
    return gate.check(compiler, path, 90).problems


def test_spilling_kernels_are_reported(compiler: nvrtc.Compiler, tmp_path: Path) -> None:
    text = f'extern "C" __global__ void __launch_bounds__(1024, 2) sums({PARAMETERS}) {{{BODY}}}'
    actual = " ".join(problems(compiler, tmp_path / "sums.cu", text))
    assert "sums in sums.cu for sm_90 needs" in actual
    assert "bytes of spills; allowed: 0." in actual


def test_spilling_functions_are_reported(compiler: nvrtc.Compiler, tmp_path: Path) -> None:
    """ptxas reports functions that are not inlined separately, after their kernel."""
    text = f"__device__ __noinline__ void inner({PARAMETERS}) {{{BODY}}}\n"
    text += 'extern "C" __global__ void __launch_bounds__(1024, 2) '
    text += f"outer({PARAMETERS}) {{ inner(in, out); }}"
    actual = " ".join(problems(compiler, tmp_path / "outer.cu", text))
    assert "outer in outer.cu for sm_90 needs" in actual
    assert "bytes of spills; allowed: 0." in actual


def test_other_faults_are_reported(compiler: nvrtc.Compiler, tmp_path: Path) -> None:
    path = tmp_path / "fault.cu"
    fine = 'extern "C" __global__ void fault(int* out) { *out = 1; }\n'
    assert problems(compiler, path, fine) == []
    assert "does not compile" in problems(compiler, path, fine + "int x = y;")[0]
    hidden = (
        fine + '#define KERNEL extern "C" __global__ void\nKERNEL hidden(int* out) { *out = 2; }'
    )
    assert problems(compiler, path, hidden) == ["fault.cu for sm_90 reports an unknown hidden."]
    array = 'extern "C" __global__ void fault(int* out) {\n    int held[32];\n'
    array += "    for (int k = 0; k < 32; ++k) held[(k * out[k]) & 31] = k;\n"
    array += "    *out = held[*out & 31];\n}\n"
    (problem,) = problems(compiler, path, array)
    assert problem == "fault in fault.cu for sm_90 needs 128 bytes of stack; allowed: 0."


def test_unknown_reports_fail() -> None:
    report = (
        "ptxas info    : Compiling entry function 'one' for 'sm_90'\n"
        "ptxas info    : Function properties for one\n"
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 0 barriers\n"
        "ptxas info    : Function properties for inner\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
    )
    assert nvrtc.parse(report) == [nvrtc.Resources("one", 24, 28, 40)]
    for broken in (
        report.replace("Compiling entry function", "Compiled"),
        report.replace("Used 40", "Uses 40"),
        report.replace("16 bytes stack frame", "16 bytes of stack"),
    ):
        with pytest.raises(AssertionError):
            nvrtc.parse(broken)


def test_page_lists_the_exceptions_of_the_gate() -> None:
    text = PAGE.read_text("utf-8")
    for kernel in (*gate.MORE_REGISTERS, *gate.STACK):
        assert f"`{kernel}`" in text
    assert "python tests/cuda/gate.py" in text
