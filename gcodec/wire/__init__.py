"""Bytes: integers, strings, parameter fields and seek tables as frames store them.

Everything here turns values into bytes and back. What a codec or a frame means lives above.
"""
