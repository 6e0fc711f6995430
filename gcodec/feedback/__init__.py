"""Error feedback: residuals of tensors around a codec.

`feedback` defines `Feedback` and `Transaction`, `states` what they keep for each tensor, and
`state_dict` how that is saved and loaded.
"""

from gcodec.feedback.feedback import Feedback, L1Norms, Transaction, derive_seed
from gcodec.feedback.states import GroupStep, Memory

__all__ = ["Feedback", "GroupStep", "L1Norms", "Memory", "Transaction", "derive_seed"]
