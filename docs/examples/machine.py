"""A machine that does not exist: how fast must V-Rex8's link be until it no longer bounds a frame?

python docs/examples/machine.py
"""

from sw_model.request import Request

TOKENS = 40_000

for gbps in (2, 4, 8, 16):
    result = Request(system="vrex8", policy="resv", tokens=TOKENS, changes={"link.nominal_gbps": gbps}).run()
    waited = {stage: time.exposed_s for stage, time in result.stages.items()}
    worst = max(waited, key=lambda stage: waited[stage])
    share = waited[worst] / result.total_s
    print(f"{gbps:2} GB/s: {result.fps:.1f} frames/s, {share:.0%} of the time waiting for {worst}")
