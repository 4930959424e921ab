"""Full attention; the KV cache is offloaded to the host and streamed back in every step (FlexGen, arXiv 2303.06865)."""

import numpy as np

from sw_model.policies.base import Policy, Selection, Step, Work


class Full(Policy):
    """Every step attends to all past tokens."""

    name = "full"
    offloads_all = frozenset({"vrex", "gpu"})
    blocking = frozenset({"gpu"})

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        tokens = (np.arange(self.past(layer)),) * self.model.kv_heads
        self.note(layer, stage, tokens)
        return Selection(tokens)

    def account(self, step: Step) -> Work:
        return self.work(step, attended=step.past_tokens, extents=1 if step.past_tokens else 0)
