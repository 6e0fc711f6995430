"""Figures of docs/reliability.md, each measured by one module: ``python -m fuzz.figures``."""
