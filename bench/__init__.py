"""Benchmarks; the speed benchmark prints ratios measured in one run: ``python -m bench``."""
