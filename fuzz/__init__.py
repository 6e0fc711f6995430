"""A seeded fuzzer without dependencies: ``python -m fuzz``."""
