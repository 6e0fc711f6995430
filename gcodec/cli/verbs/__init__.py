"""The verbs of the command, one module each: options in, calls, results out.

Presentation lives in `gcodec.cli.render` and `gcodec.cli.report`.
"""
