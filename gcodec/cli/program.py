"""The program ``gcodec``, which an interrupt ends at once until its first verb is imported."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line of this process, and end it."""
    # An exception would print the traceback of an import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gcodec.cli.main import main

    main()
