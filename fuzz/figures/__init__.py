"""The figures of docs/reliability.md, each measured by a module: ``python -m fuzz.figures``."""
