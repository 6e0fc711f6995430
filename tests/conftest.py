"""Hypothesis profiles, what makes all tests faster, and what holds after all tests.

The default profile is deterministic and quick, ``long`` searches afresh:
``GCODEC_HYPOTHESIS_PROFILE=long pytest tests/test_laws.py`` runs every law on new examples.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gcodec.runtime import pool

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "long", database=None, deadline=None, max_examples=3000, suppress_health_check=_SLOW
)
pool._THRESHOLD = 1 << 20  # shorter tensors are cut to segments, so that tests take less time
settings.load_profile(os.environ.get("GCODEC_HYPOTHESIS_PROFILE", "default"))

_BYTECODE = pytest.StashKey[str | None]()


def is_whole(config: pytest.Config) -> bool:
    """Return whether this process runs all tests, or lets workers run them."""
    chosen = config.option.keyword or config.option.markexpr or hasattr(config, "workerinput")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen


def pytest_configure(config: pytest.Config) -> None:
    """Give the processes that tests start a folder for bytecode, if they must not write any.

    Without bytecode, each of them would compile all modules that it imports.
    """
    folder = getattr(config, "workerinput", {}).get("bytecode")
    if sys.dont_write_bytecode and is_whole(config):
        folder = tempfile.mkdtemp(prefix="gcodec-bytecode-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.stash[_BYTECODE] = folder
    if folder and not config.getoption("numprocesses", None):  # this process runs tests
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Share the folder for bytecode with the workers of pytest-xdist."""
    node.workerinput["bytecode"] = node.config.stash[_BYTECODE]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the missing kernels before a run of all tests, which needs nearly all of them.

    Workers and the processes that they start would compile the helpers of kernels several times,
    and wait for each other.
    """
    if is_whole(session.config) and not session.config.option.collectonly:
        command = [sys.executable, "-m", "gcodec", "warmup"]
        subprocess.run(command, cwd=session.config.rootpath, check=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt what exists before the first test from garbage collection: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def all_kernels_are_declared() -> Iterator[None]:
    """Check after all tests that `gcodec warmup` knows every kernel that they made."""
    yield
    if "gcodec.runtime.jit" not in sys.modules:
        return
    from gcodec.kernels.rans import rans_read, rans_write
    from gcodec.kernels.rans.rans_vector import widths
    from gcodec.runtime import jit

    jit.kernels()
    declared = [set(arguments()) for _, arguments in jit._FACTORIES]
    for width in widths():  # the tests of rANS use every vector width of the host
        with pytest.MonkeyPatch.context() as patch:
            for module in (rans_read, rans_write):
                patch.setattr(module, "vector_width", lambda width=width: width)
            for known, (_, arguments) in zip(declared, jit._FACTORIES, strict=True):
                known.update(arguments())
    for known, (make, _) in zip(declared, jit._FACTORIES, strict=True):
        # Tests may define a few rules and codes.
        assert make.cache_info().currsize <= len(known) + 6, make.__qualname__
