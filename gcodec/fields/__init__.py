"""What the bits of payloads are, field by field: what codecs describe theirs with.

A codec's `_describe` returns the pieces of a payload in the order in which they lie there. They
come from a `Walk`, by the same tables, codes and readers that decode.
"""
