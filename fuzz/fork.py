"""A child that goes on from here, without warnings that this process has threads."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Fork; return 0 in the child. Threads of the pool, and of JAX, are at rest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fork alone: what the child does may warn
        return os.fork()
