"""A progress bar on stderr, for work that lasts and somebody who watches."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from gcodec.cli.text import printable

_PATIENCE = 1.0  # seconds before anything is shown


@contextlib.contextmanager
def progress(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how much of the work is done, once it has lasted a second.

    Parameters
    ----------
    what : str
        Before the bar.
    total : int
        The whole of the work, in any unit.
    quiet : bool
        Show nothing.

    Yields
    ------
    callable
        To be told of every amount that is done.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda amount: None
        return
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Rich would put itself between the verb and its own stdout.
        bar = Progress(
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = bar.add_task(escape(printable(what, err=True)), total=total)

        def advance(amount: int) -> None:
            if not bar.live.is_started and time.monotonic() - started > _PATIENCE:
                stack.enter_context(bar)
            bar.advance(task, amount)

        yield advance
