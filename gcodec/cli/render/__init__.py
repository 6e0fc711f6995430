"""Results as terminal tables and JSON documents.

Nothing here measures.
"""
