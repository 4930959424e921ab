"""A unit in a real simulator: the same hash codes through the generated Verilog and through its golden model.

python docs/examples/simulate.py
"""

import numpy as np

from golden.clustering import ClusterTable
from hw.config import Config
from hw.dre.hcu import HCU, Op
from sim.bench.run import simulate
from sim.ports.hcu import cluster_rule, hcu_ports

TOKENS = 40

unit = HCU.from_config(Config.preset("tiny"))
codes = np.random.default_rng(1).integers(0, 1 << unit.hash_bits, TOKENS).astype(np.uint32)
beats = {"op": np.full(TOKENS, Op.TOKEN.value), "hash": codes, "last": np.arange(TOKENS) % 10 == 9}
rule = cluster_rule(unit, hamming_threshold=5, window_tokens=0)
record = simulate(unit, "hcu", {"i": beats}, {"o": TOKENS}, config=hcu_ports(rule), stall=0.3, seed=1)

table = ClusterTable(rule)
same = record.outputs["o"]["cluster"] == table.assign(codes).cluster
print(f"{same.sum()} of {TOKENS} tokens are in the same cluster; {record.status['stat_busy']} cycles of search")
