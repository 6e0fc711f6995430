"""``python -m gcodec``: the command line."""

from gcodec.cli.main import main

main()
