"""Chunks of a tensor under the discrete cosine transform: what `codecs.dct8` is made of."""
