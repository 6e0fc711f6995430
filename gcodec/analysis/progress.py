"""How long measurements report their progress to the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Function that takes the title and the total amount of a piece of work, and returns a context
manager. That yields a function to be called with each amount of work that is done."""


@contextlib.contextmanager
def no_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Report no progress."""
    yield lambda amount: None
