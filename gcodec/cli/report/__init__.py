"""Results as an HTML page with figures.

Nothing here measures; matplotlib is imported by `vector_graphics` alone.
"""
