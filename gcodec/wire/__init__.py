"""Bytes: integers, strings, parameter fields and seek tables as frames store them.

The modules convert values to bytes and back; they know no codec and no frame.
"""
