"""Hit rate of the rules that say which tokens stay in device memory: `python -m tests.sw_model.bench_retention`.

A policy selects on a stream, once. The selections are then replayed with each rule and size of memory
(`sw_model.retention`). The stream is the generator, a video or a trace; the second half of its frames counts.
"""

import argparse

import numpy as np

from sw_model.media.source import Options, Source, open_source
from sw_model.quality import policies_for
from sw_model.retention import RULES, Selected, hit_rate
from util.text import table

CAPACITIES = (0.1, 0.25, 0.5, 0.75)  # shares of the tokens at the end of the stream


def selections(stream: Source, name: str) -> list[list[Selected]]:
    """Steps of every layer and KV head."""
    (policy,) = policies_for(stream.geometry, stream.tokens_per_frame, [name]).values()
    steps: dict[tuple[int, int], list[Selected]] = {}
    past = 0
    for chunk in stream.chunks:
        for layer, (q, k, v) in enumerate(zip(chunk.q, chunk.k, chunk.v, strict=True)):
            policy.append(layer, k, v)
            for head, tokens in enumerate(policy.select(layer, q, chunk.stage).tokens):
                own = Selected(past, len(k), np.asarray(tokens, np.int64))
                steps.setdefault((layer, head), []).append(own)
        past += len(chunk.positions)
    return list(steps.values())


def rows(steps: list[list[Selected]]) -> list[list[str]]:
    """A row for each size of the memory: its share of the tokens, and the hit rate of each rule."""
    last = steps[0][-1]
    first, total = len(steps[0]) // 2, last.past + last.new
    result = []
    for capacity in CAPACITIES:
        rates = {rule: [hit_rate(own, rule, round(capacity * total), first) for own in steps] for rule in RULES}
        shares = [sum(r.hits for r in own) / max(1, sum(r.selected for r in own)) for own in rates.values()]
        result.append([f"{capacity:.0%}", *(f"{share:.1%}" for share in shares)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="generator", help="generator, a video or a trace")
    parser.add_argument("--policy", default="resv", help="a policy that selects tokens (default resv)")
    parser.add_argument("--frames", type=int, default=400, help="frames of the stream (default 400)")
    parser.add_argument("--fps", type=float, help="sampling rate of a video in frames per second (default every frame)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator or the front end (default 0)")
    args = parser.parse_args()
    stream = open_source(args.source, Options(frames=args.frames, fps=args.fps, seed=args.seed))
    steps = selections(stream, args.policy)
    own, last = steps[0], steps[0][-1]
    share = np.mean([len(step.tokens) / max(1, step.past) for step in own[len(own) // 2 :]])
    print(f"{args.source}, {args.policy}: {len(own)} steps, {last.past + last.new} tokens, {share:.1%} selected")
    print(table(["memory", *RULES], rows(steps)))


if __name__ == "__main__":
    main()
