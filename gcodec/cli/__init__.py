"""The command line: `verbs` parse and call, `coding` encodes and decodes, `render` shows results.

Nothing here measures.
"""
