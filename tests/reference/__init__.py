"""Slow, obvious oracles written from the specification alone; they import nothing of gcodec."""
