"""Fork without the warnings about threads of this process."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Fork; return 0 in the child. The threads of the pool and of JAX must be idle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only for the fork; the child may warn
        return os.fork()
