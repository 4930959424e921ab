"""Speed of the compiled kernels of ReSV compared with the golden NumPy models, on the same data.

Run by hand: python -m tests.sw_model.huggingface.bench_kernels [--tokens 10000] [--step 10] [--repeat 3]. Both sides
run alternately in this process and must give equal results; the printed times are the best ones.
"""

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from ml_dtypes import bfloat16

from golden import scores, wicsum
from golden.clustering import ClusterTable
from golden.hashing import hash_codes, hyperplanes
from golden.resv import ResvLayer
from sw_model.huggingface import kernels
from sw_model.huggingface.resv import CompiledResvLayer, CompiledTable, default_config
from sw_model.media.generator import Generator, coin

KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
FIELDS = ("cluster", "opened", "count", "distance", "overflow", "compared")


def best(repeat, *functions):
    """Best time of each function in seconds, and the last results; the functions run alternately."""
    times, results = [[] for _ in functions], [None] * len(functions)
    for _ in range(repeat):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            results[i] = function()
            times[i].append(time.perf_counter() - start)
    return [min(t) for t in times], results


def cluster(table, codes, step):
    """Cluster all codes, `step` tokens at a time; returns the cluster of each token."""
    return np.concatenate([table.assign(codes[i : i + step]).cluster for i in range(0, len(codes), step)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()

    chunks = list(Generator(coin()).chunks(-(-args.tokens // 10)))
    keys = np.concatenate([c.k[0] for c in chunks])[: args.tokens]
    queries = np.concatenate([c.q[0] for c in chunks])[-args.step :]
    codes = hash_codes(keys, hyperplanes(KV_HEADS * HEAD_DIM))

    def row(name, golden, compiled, equal):
        compiled()  # compile
        (slow, fast), results = best(args.repeat, golden, compiled)
        assert equal(*results), f"{name}: results differ"
        print(f"{name:44s} {slow * 1e3:10.2f} ms {fast * 1e3:10.3f} ms {slow / fast:8.1f} x")

    print(f"{args.tokens} tokens, steps of {args.step} tokens, {KV_HEADS} KV heads of {HEAD_DIM}, {GROUP} queries each")
    print(f"{'':44s} {'golden':>13s} {'compiled':>13s}")
    for step in (args.step, args.tokens):
        row(
            f"Hamming search, steps of {step} tokens",
            lambda step=step: cluster(ClusterTable(), codes, step),
            lambda step=step: cluster(CompiledTable(), codes, step),
            np.array_equal,
        )
    golden, compiled = (
        ResvLayer(default_config(), KV_HEADS, HEAD_DIM),
        CompiledResvLayer(default_config(), KV_HEADS, HEAD_DIM),
    )
    for i in range(0, args.tokens, args.step):
        golden.append(keys[i : i + args.step])
        compiled.append(keys[i : i + args.step])
    rows = scores.query_rows(queries, KV_HEADS)[0]
    score = scores.dots(rows, golden.means[0].means[:, :HEAD_DIM])
    counts = golden.tables[0].counts
    print(f"{len(counts)} clusters, {len(rows)} rows for each KV head")

    def threshold():
        selected = np.zeros(len(counts), bool)
        ratio = compiled.config.wics_ratio_q16
        kernels.select_clusters(score, counts, compiled._factor, ratio, 16, 1, selected)
        return selected

    row(
        "thresholding of one KV head",
        lambda: wicsum.select(
            scores.codes(score, HEAD_DIM), counts, golden.config.wics_ratio_q16, golden.config.wtu
        ).selected.any(axis=0),
        threshold,
        np.array_equal,
    )

    def golden_step():
        return golden.attended(golden.select(queries), args.tokens)[0]

    def equal_tokens(a, b):
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    row(
        "whole selection of one layer, with scores",
        golden_step,
        lambda: compiled.attended_tokens(queries, args.tokens)[1],
        equal_tokens,
    )

    def build(layer_class):
        layer = layer_class(default_config(), KV_HEADS, HEAD_DIM)
        for i in range(0, args.tokens, args.step):
            layer.append(keys[i : i + args.step])
        return layer.means[0].means.astype(bfloat16).view(np.uint16)

    row(
        "index of all tokens, with hash codes",
        lambda: build(ResvLayer),
        lambda: build(CompiledResvLayer),
        np.array_equal,
    )


if __name__ == "__main__":
    main()
