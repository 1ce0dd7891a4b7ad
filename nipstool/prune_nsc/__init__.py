"""Neural Spectral Capacity (NSC): score architectures, find the best under budgets, prune decoders to it.

>>> from nipstool.prune_nsc import Budgets, prune
>>> prune("SmolLM2-135M", "smaller", Budgets(ratio=0.85)).plan.answer.params  # doctest: +SKIP
114,000,000
"""

from nipstool.prune_nsc.plan import Answer, Budgets, Plan, Settings, plan
from nipstool.prune_nsc.prune import Pruned, prune

__all__ = ["Answer", "Budgets", "Plan", "Pruned", "Settings", "plan", "prune"]
