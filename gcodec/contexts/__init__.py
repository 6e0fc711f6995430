"""Symbols coded by what the scales of their row and column lead to expect of them."""
