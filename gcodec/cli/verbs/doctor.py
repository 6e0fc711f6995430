"""``gcodec doctor``: whether this installation works, and how fast it can be."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator
from typing import NamedTuple

import click

from gcodec.cli.options import json_option, quiet_option
from gcodec.cli.verb import Verb

_FEATURES = ("sse4.2", "avx2", "fma", "avx512f", "avx512vbmi2", "neon", "sve")
_VARIABLES = ("GCODEC_CACHE_DIR", "GCODEC_NUM_THREADS", "GCODEC_CHECKED")


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    ok : bool
    found : str
        What is there.
    advice : str
        What to do, where that is not as it should be.
    """

    name: str
    ok: bool
    found: str
    advice: str = ""


@click.command(
    cls=Verb,
    name="doctor",
    examples=[
        ("Look whether all is well.", "gcodec doctor"),
        ("Versions and settings alone, for a bug report.", "gcodec doctor --no-self-test --json"),
    ],
    exits={1: "a check failed"},
)
@click.option(
    "--self-test/--no-self-test",
    default=True,
    show_default=True,
    help="Encode and decode with every codec, and compare with what it promises.",
)
@quiet_option
@json_option
def command(self_test: bool, quiet: bool, as_json: bool) -> int:
    """Look whether this installation works.

    Tells the versions of gcodec, of Python and of what it needs; which frameworks are there; where
    compiled kernels are kept, and how many are there already; for which vector instructions they
    are compiled; threads and GPUs. Then every codec encodes and decodes some values: its frames
    must be reproducible and whole, and its errors as small as its laws say. The first time this
    takes a minute, as kernels are compiled.
    """
    from gcodec.cli.document import print_document
    from gcodec.cli.outcome import FAILED, FINE
    from gcodec.cli.render.table import print_line, stdout
    from gcodec.cli.text import count

    console = stdout()
    checks = []
    for check in _checks(self_test, quiet or as_json):
        checks.append(check)
        if not as_json and not (quiet and check.ok):
            mark, style = ("ok", "") if check.ok else ("FAILED", "bold red")
            print_line(console, f"{mark:<7} {check.name:<24} {check.found}", style)
            if check.advice and not check.ok:
                print_line(console, f"{'':<7} {'':<24} {check.advice}")
    failed = [check for check in checks if not check.ok]
    code = FAILED if failed else FINE
    if as_json:
        print_document("doctor", {"checks": [c._asdict() for c in checks], "exit_code": code})
    elif not quiet:
        what = count(len(failed), "check") + " failed" if failed else "all is well"
        print_line(console, what, "bold")
    return code


def _checks(self_test: bool, quiet: bool) -> Iterator[Check]:
    from gcodec.runtime import jit

    yield from _versions()
    yield _checksums()
    yield _threads()
    yield from _kernels()
    yield _devices()
    for name in _VARIABLES:
        if name in os.environ:
            yield Check(name, True, os.environ[name])
    if self_test and not jit.compiler_fault():  # which was reported, and would be by each codec
        yield from _codecs(quiet)


def _versions() -> Iterator[Check]:
    import gcodec
    from gcodec.cli import host

    yield Check("gcodec", True, f"{gcodec.__version__}   {os.path.dirname(gcodec.__file__)}")
    python = f"{platform.python_implementation()} {platform.python_version()}   {sys.executable}"
    yield Check("Python", sys.version_info >= (3, 10), python, "gcodec needs Python 3.10 or newer")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Check("system", sys.byteorder == "little", f"{system}   {host.processor()}")
    least = host.least_versions()
    for name in host.NEEDED:
        version, wanted = host.version_of((name,)), least.get(name, "0")
        advice = f"pip install '{name}>={wanted}'" if name in least else f"pip install {name}"
        fine = version is not None and not host.is_older(version, wanted)
        yield Check(name, fine, version or "is not installed", advice)
    optional = ", ".join(f"{name} {version}" for name, version in host.optional_versions().items())
    yield Check("frameworks", True, optional or "none; NumPy arrays and DLPack do")


def _checksums() -> Check:
    import google_crc32c

    kind = google_crc32c.implementation
    advice = "it is slow: install a wheel of google-crc32c that is built for this Python"
    return Check("CRC-32C", kind == "c", f"in {'C' if kind == 'c' else kind}", advice)


def _threads() -> Check:
    from gcodec.errors import ParameterError
    from gcodec.runtime.pool import thread_count

    try:
        return Check("threads", True, str(thread_count()))
    except ParameterError as error:
        return Check("threads", False, str(error), "unset it, or set it to a number")


def _kernels() -> Iterator[Check]:
    from gcodec.kernels.rans.rans_vector import vector_width
    from gcodec.runtime import jit
    from gcodec.runtime.lanes import compiles_for

    if fault := jit.compiler_fault():
        yield Check("compiler", False, fault)
    fault, directory = jit.cache_fault(), jit.cache_directory()
    advice = "set GCODEC_CACHE_DIR to a directory of your own, to which nobody else can write"
    if directory is None:
        found = f"every process compiles the kernels that it uses: {fault}"
        yield Check("kernel cache", False, found, advice)
    else:
        kernels = jit.kernels()
        count = sum(kernel.cached for kernel in kernels)
        found = f"{count} of {len(kernels)} kernels compiled   {directory}"
        if fault and count < len(kernels):
            yield Check("kernel cache", False, f"{found}   {fault}", advice)
        else:
            found += "   (the rest: gcodec warmup)" if count < len(kernels) else ""
            yield Check("kernel cache", True, found)
    features = [name for name in _FEATURES if compiles_for(name)]
    width = vector_width()
    rans = f"rANS by vectors of {width} lanes" if width else "rANS by single symbols"
    bounds = "   with bounds checks, slow" if jit.checked() else ""
    yield Check("vector instructions", True, f"{', '.join(features) or 'none'}; {rans}{bounds}")


def _devices() -> Check:
    from gcodec.cli import host

    names = ", ".join(host.gpus())
    version = host.version_of(("cupy-cuda12x", "cupy-cuda13x", "cupy"))
    there = "arrays on it need gcodec[cuda12] or gcodec[cuda13]"
    if version is not None:
        there = f"CuPy {version}"
    return Check("GPU", True, f"{names}; {there}" if names else "none")


def _codecs(quiet: bool) -> Iterator[Check]:
    from gcodec.cli import self_test
    from gcodec.cli.progress import progress
    from gcodec.codec import registered

    importlib.import_module("gcodec.codecs")  # which registers them
    x, known = self_test.gradient(), registered()
    with progress("self-test", len(known), quiet=quiet) as advance:
        for name, cls in known.items():
            wrong = self_test.failures(cls(), x)
            advance(1)
            found = "; ".join(wrong) or f"{x.size:,} values as promised"
            yield Check(f"codec {name}", not wrong, found, "please report this")
