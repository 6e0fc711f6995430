"""Hypothesis profiles: the default one is deterministic and quick, ``long`` searches afresh.

``GCODEC_HYPOTHESIS_PROFILE=long pytest tests/test_laws.py`` runs every law on new examples.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "long", database=None, deadline=None, max_examples=3000, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("GCODEC_HYPOTHESIS_PROFILE", "default"))
