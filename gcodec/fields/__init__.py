"""Descriptions of payloads, field by field.

A codec's `_describe` returns the fields of a payload in the order of its bits. A walker produces
them with the same tables, codes and readers that decode. Reports of whole files live in
`gcodec.analysis`.
"""
