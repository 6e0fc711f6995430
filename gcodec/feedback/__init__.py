"""Error feedback: residuals of tensors around a codec.

`feedback` defines `Feedback`, `transaction` the `Transaction` of steps that can be rolled back,
`states` what they keep for each tensor, and `state_dict` how that is saved and loaded.
"""

from gcodec.feedback.feedback import Feedback, L1Norms, derive_seed
from gcodec.feedback.states import GroupStep, Memory
from gcodec.feedback.transaction import Transaction

__all__ = ["Feedback", "GroupStep", "L1Norms", "Memory", "Transaction", "derive_seed"]
