"""Hypothesis profiles, and what holds after all tests.

The default profile is deterministic and quick, ``long`` searches afresh:
``GCODEC_HYPOTHESIS_PROFILE=long pytest tests/test_laws.py`` runs every law on new examples.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "long", database=None, deadline=None, max_examples=3000, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("GCODEC_HYPOTHESIS_PROFILE", "default"))


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
