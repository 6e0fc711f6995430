"""Advice on compression: expected times on a cluster, costs in steps, and a codec for a tensor.

A cluster has nodes of several GPUs. In each step, every GPU computes a gradient, and the cluster
adds up all gradients: inside each node, each GPU sums one share of the gradients; between the
nodes, the GPUs sum equal shares; inside each node, the GPUs gather the results. The GPUs of a node
share its link to the other nodes. At each of these two levels, gradients travel uncompressed in a
ring, or as messages of a codec. `gcodec.choose` picks a codec for one tensor. Codecs and training
methods themselves live elsewhere.

``docs/advise.md`` explains the model with worked examples; `gcodec advise` is the command.

>>> from gcodec import advisor
>>> cluster = advisor.Cluster(64, 8, advisor.Link(12.5e9), advisor.Link(600e9))
>>> work = advisor.Work(values=10**9, compute=0.1, bits=16)
>>> schemes = [advisor.Scheme("4 bits", 4, error=0.01), advisor.Scheme("1 bit", 1, error=0.4)]
>>> advice = advisor.advise(cluster, work, schemes)
>>> [way.how for way in advice.best.ways]
['ring', 'two-phase 4 bits']
>>> f"{advice.dense.hidden:.3f} s, {advice.best.hidden:.3f} s"
'0.321 s, 0.100 s'
"""

from gcodec.advisor.convergence import (
    Law,
    Problem,
    feedback_bound,
    law_of,
    plain_bound,
    residual_bound,
    steps_to_double,
    unbiased_bound,
)
from gcodec.advisor.links import (
    Link,
    all_gather_limit,
    all_gather_within,
    all_to_all,
    break_even,
    coding_time,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    two_phase,
    two_phase_within,
)
from gcodec.advisor.machines import CodingSpeed, Machine, find_machine, machines
from gcodec.advisor.plans import (
    Advice,
    Balance,
    Cluster,
    Level,
    Plan,
    Scheme,
    Way,
    Work,
    advise,
    balance,
    dense_plan,
    plan,
    ways,
)

__all__ = [
    "Advice",
    "Balance",
    "Cluster",
    "CodingSpeed",
    "Law",
    "Level",
    "Link",
    "Machine",
    "Plan",
    "Problem",
    "Scheme",
    "Way",
    "Work",
    "advise",
    "all_gather_limit",
    "all_gather_within",
    "all_to_all",
    "balance",
    "break_even",
    "coding_time",
    "dense_plan",
    "feedback_bound",
    "find_machine",
    "law_of",
    "machines",
    "plain_bound",
    "plan",
    "residual_bound",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "steps_to_double",
    "two_phase",
    "two_phase_within",
    "unbiased_bound",
    "ways",
]
