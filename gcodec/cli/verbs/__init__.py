"""The verbs, one module each: a verb parses its options, calls the library, and shows the result.

Views of more than a few lines are in `gcodec.cli.render`.
"""
