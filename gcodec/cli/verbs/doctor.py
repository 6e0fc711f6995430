"""``gcodec doctor``: check this installation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

from gcodec.analysis import host
from gcodec.cli import options
from gcodec.cli.outcome import FAILED, FINE

_FEATURES = ("sse4.2", "avx2", "fma", "avx512f", "avx512vbmi2", "neon", "sve")
_NECESSARY = ("compiler", "target")  # checks without which each codec would fail
_VARIABLES = tuple(
    f"GCODEC_{name}" for name in ("CACHE_DIR", "NUM_THREADS", "KEPT_MIB", "CHECKED", "TARGET")
)


class Check(NamedTuple):
    """The result of a check.

    Attributes
    ----------
    name : str
        Subject of the check.
    ok : bool
        Whether the check passed.
    result : str
        Observed state.
    advice : str
        Remedy, for a check that failed.
    """

    name: str
    ok: bool
    result: str
    advice: str = ""

    def document(self) -> dict[str, object]:
        """Return the JSON object of the check."""
        return {"name": self.name, "ok": self.ok, "found": self.result, "advice": self.advice}


@options.verb(
    "doctor",
    ("Check the installation.", "gcodec doctor"),
    ("Print versions and settings for a bug report.", "gcodec doctor --no-self-test --json"),
    exits={1: "a check failed"},
)
@click.option(
    "--self-test/--no-self-test",
    default=True,
    help="Encode and decode with every codec, and compare the results with its promises.",
)
@options.quiet
@options.json
def command(self_test: bool, quiet: bool, as_json: bool) -> int:
    """Check this installation.

    gcodec shows the versions of gcodec, Python and all dependencies; the installed frameworks; the
    cache of compiled kernels; the vector instructions that kernels use; threads and GPUs. Then
    every codec encodes and decodes some values: frames must be reproducible and intact, and errors
    must obey the codec's laws. The first run takes a minute, because it compiles kernels.
    """
    from gcodec.cli.render.output import print_document, print_line, stdout
    from gcodec.cli.render.text import count

    console = stdout()
    checks = []
    for check in _checks(self_test, quiet or as_json):
        checks.append(check)
        if not as_json and not (quiet and check.ok):
            mark, style = ("ok", "") if check.ok else ("FAILED", "bold red")
            print_line(console, f"{mark:<7} {check.name:<24} {check.result}", style)
            if check.advice and not check.ok:
                print_line(console, f"{'':<32} {check.advice}")
    failed = sum(not check.ok for check in checks)
    code = FAILED if failed else FINE
    if as_json:
        print_document(
            "doctor", {"checks": [check.document() for check in checks], "exit_code": code}
        )
    elif not quiet:
        summary = count(failed, "check") + " failed" if failed else "all checks passed"
        print_line(console, summary, "bold")
    return code


def _checks(self_test: bool, quiet: bool) -> Iterator[Check]:
    from gcodec.runtime.pool import thread_count
    from gcodec.runtime.reuse import kept_nbytes

    yield from _versions()
    yield _checksums()
    yield _setting("threads", lambda: str(thread_count()))
    yield _setting("reused memory", lambda: f"up to {kept_nbytes() >> 20} MiB")
    kernels = list(_kernels())
    yield from kernels
    yield _devices()
    for name in _VARIABLES:
        if name in os.environ:
            yield Check(name, True, os.environ[name])
    if self_test and not any(check.name in _NECESSARY and not check.ok for check in kernels):
        yield from _codecs(quiet)


def _versions() -> Iterator[Check]:
    import gcodec

    yield Check("gcodec", True, f"{gcodec.__version__}   {os.path.dirname(gcodec.__file__)}")
    python = f"{platform.python_implementation()} {platform.python_version()}   {sys.executable}"
    yield Check("Python", sys.version_info >= (3, 10), python, "gcodec needs Python 3.10 or newer")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Check("system", sys.byteorder == "little", f"{system}   {host.processor()}")
    minimums = host.minimum_versions()
    for name in host.NEEDED:
        version, minimum = host.version_of((name,)), minimums.get(name)
        requirement = name if minimum is None else f"'{name}>={minimum}'"
        ok = version is not None and not host.is_older(version, minimum or "0")
        yield Check(name, ok, version or "is not installed", f"pip install {requirement}")
    optional = ", ".join(f"{name} {version}" for name, version in host.optional_versions().items())
    yield Check("frameworks", True, optional or "none; NumPy arrays and DLPack work without")


def _checksums() -> Check:
    import google_crc32c

    kind = google_crc32c.implementation
    advice = "this is slow: install a wheel of google-crc32c that is built for this Python"
    return Check("CRC-32C", kind == "c", f"in {'C' if kind == 'c' else kind}", advice)


def _setting(name: str, state: Callable[[], str]) -> Check:
    """Return the check of an environment variable, given a function that reads it."""
    from gcodec.errors import ParameterError

    try:
        return Check(name, True, state())
    except ParameterError as error:
        return Check(name, False, str(error), "unset the variable, or set it to a number")


def _kernels() -> Iterator[Check]:
    from gcodec.errors import ParameterError
    from gcodec.kernels.rans.rans_vector import vector_width
    from gcodec.runtime import jit, kernel_cache, processor
    from gcodec.runtime.lanes import compiles_for

    try:
        processor.target()
    except ParameterError as error:
        yield Check("target", False, str(error), "unset the variable, or set it to one of these")
        return
    if fault := kernel_cache.compiler_fault():
        yield Check("compiler", False, fault)
    fault, directory = kernel_cache.fault(), kernel_cache.directory()
    advice = "set GCODEC_CACHE_DIR to a directory of your own that nobody else can write to"
    if directory is None:
        state = f"every process compiles the kernels that it uses: {fault}"
        yield Check("kernel cache", False, state, advice)
    else:
        kernels = jit.kernels()
        count = len(kernels) - len(kernel_cache.missing(kernels))
        state, complete = f"{count} of {len(kernels)} kernels compiled", count == len(kernels)
        state += f"   {directory}"
        if fault and not complete:
            yield Check("kernel cache", False, f"{state}   {fault}", advice)
        else:
            hint = "" if complete else "   (gcodec warmup compiles the rest)"
            yield Check("kernel cache", True, state + hint)
    features = ", ".join(name for name in _FEATURES if compiles_for(name))
    width = vector_width()
    rans = f"rANS by vectors of {width} lanes" if width else "rANS by single symbols"
    bounds = "   with bounds checks, slow" if jit.checked() else ""
    yield Check("vector instructions", True, f"{features or 'none'}; {rans}{bounds}")


def _devices() -> Check:
    names = ", ".join(host.gpus())
    version = host.version_of(("cupy-cuda12x", "cupy-cuda13x", "cupy"))
    support = "arrays on it need gcodec[cuda12] or gcodec[cuda13]"
    if version is not None:
        support = f"CuPy {version}"
    return Check("GPU", True, f"{names}; {support}" if names else "none")


def _codecs(quiet: bool) -> Iterator[Check]:
    import gcodec
    from gcodec.analysis import self_test
    from gcodec.cli.render.output import progress

    x, classes = self_test.gradient(), gcodec.codecs()
    checks = []
    with progress("self-test", len(classes), quiet=quiet) as advance:
        for name, cls in classes.items():
            failures = self_test.failures(cls(), x)
            advance(1)
            state = "; ".join(failures) or f"{x.size:,} values as promised"
            checks.append(Check(f"codec {name}", not failures, state, "please report this"))
    yield from checks  # the caller prints them, after the bar has closed
