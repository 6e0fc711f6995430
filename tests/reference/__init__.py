"""Slow, simple oracles written only from the specification; they import nothing from gcodec."""
