"""A unit in a real simulator: the same hash codes through the generated Verilog and through its golden model.

python docs/examples/simulate.py
"""

import numpy as np

from golden.clustering import ClusterRule, ClusterTable
from hw.config import Config
from hw.dre.hcu import HCU, Op
from sim.bench.run import simulate

TOKENS, THRESHOLD = 40, 5

unit = HCU.from_config(Config.preset("tiny"))
codes = np.random.default_rng(1).integers(0, 1 << unit.hash_bits, TOKENS).astype(np.uint32)
beats = {"op": np.full(TOKENS, Op.TOKEN.value), "hash": codes, "last": np.arange(TOKENS) % 10 == 9}
settings = {"cfg_hamming_threshold": THRESHOLD, "cfg_max_cluster_tokens": 65535}
record = simulate(unit, "hcu", {"i": beats}, {"o": TOKENS}, config=settings, stall=0.3, seed=1)

table = ClusterTable(ClusterRule(hamming_threshold=THRESHOLD, max_candidates=unit.clusters))
same = record.outputs["o"]["cluster"] == table.assign(codes).cluster
print(f"{same.sum()} of {TOKENS} tokens are in the same cluster; {record.status['stat_busy']} cycles of search")
