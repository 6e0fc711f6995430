"""Views of results: terminal tables, JSON, CSV, Markdown, and the HTML report.

Nothing here measures. Only `figures` imports matplotlib.
"""
