"""The codec `ecsq`: quantizers, rate control, reconstruction points and the transform of filters.

The coder of its levels lives in `gcodec.entropy.context`, because other codecs use it, too.
"""

from gcodec.codecs.ecsq.codec import ECSQ
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels

__all__ = ["ECSQ", "FilterTransform", "QuantizedLevels"]
