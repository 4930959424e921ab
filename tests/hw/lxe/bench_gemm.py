"""Error of the matrix engine on real attention data against NumPy float64: `python -m tests.hw.lxe.bench_gemm [VIDEO]`.

Frames of a video go through the front end's transformer. Two products of attention are formed from one layer: scores
Q K^T (K = head dimension) and outputs P V (K = tokens), P the float64 softmax rounded to BF16. The engine is the golden
model that its Verilog equals bit for bit, compared with NumPy's float32 product of the same BF16 operands. Errors are
relative to the sum of magnitudes, mean and largest, and in the Frobenius norm.
"""

import sys

import numpy as np

from golden import bf16
from golden.bf16 import FP32
from golden.dot import matmul, to_bf16
from sw_model.media.clip import find_clip
from sw_model.media.source import Options, open_source
from util.text import table

TOKENS, ROWS, INPUTS = 1024, 64, 64


def operands(video):
    """Queries (ROWS, d), keys and values (TOKENS, d) of KV head 0 in float64; all are BF16 numbers."""
    source = open_source(video, Options(frames=-(-TOKENS // 10)))
    chunks = list(source.chunks)
    k, v, q = (np.concatenate([getattr(c, name)[0, :, 0] for c in chunks]).astype(np.float64) for name in "kvq")
    return q[-ROWS:], k[:TOKENS], v[:TOKENS]


def errors(y, exact, size):
    off = np.abs(y - exact)
    return [
        f"{np.mean(off / size):.2e}",
        f"{np.max(off / size):.2e}",
        f"{np.linalg.norm(off) / np.linalg.norm(exact):.2e}",
    ]


def main(video=None):
    video = video or find_clip().path
    q, k, v = operands(video)
    score = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(score - score.max(axis=1, keepdims=True))
    p = bf16.decode(bf16.encode(p / p.sum(axis=1, keepdims=True)))
    rows = []
    for name, x, w in (("Q K^T", q, k), ("P V", p, v.T)):
        exact, size = x @ w.T, np.abs(x) @ np.abs(w).T
        name = f"{name}, K = {x.shape[1]}"
        for width in (16, 20, 24, 30):
            y = matmul(bf16.encode(x), bf16.encode(w), INPUTS, width)
            rows.append([name, f"tree of {INPUTS}, W = {width}", *errors(bf16.decode(y, FP32), exact, size)])
            if width == 24:
                rows.append([name, "the same, rounded to BF16", *errors(bf16.decode(to_bf16(y)), exact, size)])
        single = (x.astype(np.float32) @ w.astype(np.float32).T).astype(np.float64)
        rows.append([name, "NumPy float32", *errors(single, exact, size)])
    print(table(["product", "arithmetic", "mean", "largest", "Frobenius"], rows))
    print(f"{video}: {len(k)} tokens, {len(q)} queries")


if __name__ == "__main__":
    main(*sys.argv[1:2])
