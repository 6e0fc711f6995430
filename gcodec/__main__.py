"""The program ``gcodec``, also as ``python -m gcodec``."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line of this process, and end it."""
    # Until the verb is imported, an interrupt ends the process at once: an exception would print
    # the traceback of an import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gcodec.cli.main import main

    main()


if __name__ == "__main__":
    main()
