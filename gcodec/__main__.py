"""``python -m gcodec``: the command line."""

from gcodec.cli.program import main

main()
