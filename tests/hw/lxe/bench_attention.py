"""Attention of a real video through the Verilog of both engines, against NumPy float64: an error table.

python -m tests.hw.lxe.bench_attention [--preset small] [--frames 24] [--file VIDEO]

The last frame's queries of one KV head attend to the keys of all frames before it. Queries and keys come from the
front end's transformer before their rotation. VPE: RoPE of every key and query; DPE: scores Q K^T; VPE: softmax of
every row; DPE: P V. Each step takes the output of the previous step. Its row of the table has float64 start from the
same operands; the last row uses float64 in all steps. Ends with an error unless every step equals the golden models bit
for bit.
"""

import argparse
from pathlib import Path

import numpy as np

from compiler import vector_programs as programs
from golden import bf16, rope
from golden.bf16 import FP32
from golden.dot import matmul, to_bf16
from golden.vpe import VectorEngine, widen
from hw.config import Config
from hw.lxe.dpe import DPE
from hw.lxe.vpe import VPE
from sw_model.media.clip import find_clip
from sw_model.media.source import Options, open_source
from tests.hw.lxe import dpe_cases, vpe_cases
from util.text import table


def operands(video, frames):
    """Queries (R, d), keys and values (N, d) of KV head 0, their positions; before RoPE, BF16 codes."""
    chunks = [c for c in open_source(video, Options(frames=frames)).chunks if c.stage == "frame"]
    before, last = chunks[:-1], chunks[-1]
    k, v = (np.concatenate([getattr(c, name)[0, :, 0] for c in before]).astype(np.float64) for name in "kv")
    where = np.concatenate([c.positions for c in before]).astype(np.float64)
    group = last.q.shape[2] // last.k.shape[2]
    q = last.q[0, :, :group].astype(np.float64)
    here = np.repeat(last.positions.astype(np.float64), group)
    flat = rope.rotate(k, -where), rope.rotate(q.reshape(-1, q.shape[-1]), -here)
    return bf16.encode(flat[1]), here, bf16.encode(flat[0]), where, bf16.encode(v)


class Engines:
    """Both engines' Verilog as functions that also hold it to the golden models; counts cycles."""

    def __init__(self, config):
        self.dpe, self.vpe = DPE.from_config(config), VPE.from_config(config)
        self.cycles = 0

    def vector(self, program, stream):
        record = vpe_cases.run(self.vpe, program, stream)
        out = record.outputs["o"]
        np.testing.assert_array_equal(out, VectorEngine(self.vpe.lanes, self.vpe.rows).run(program, stream))
        self.cycles = int(record.cycles["o"][-1] - record.cycles["i"][0]) + 1
        return out.astype(np.uint32)

    def rotate(self, codes, positions):
        """BF16 codes (M, d) rotated by their positions."""
        d, lanes = codes.shape[1], self.vpe.lanes
        program, streams, order = [], [], []
        for position in np.unique(positions):
            at = np.flatnonzero(positions == position)
            program += programs.rope(d, lanes, len(at))
            streams.append(vpe_cases.rope_stream(widen(codes[at]), position * rope.frequencies(d), lanes))
            order.append(at)
        rotated = vpe_cases.from_pairs(self.vector(program, np.concatenate(streams)), d, lanes)
        result = np.empty_like(codes)
        result[np.concatenate(order)] = bf16.encode(rotated)
        return result

    def softmax(self, scores, head_dim):
        """FP32 scores (M, n) as BF16 shares."""
        m, n = scores.shape
        program = programs.softmax(n, self.vpe.lanes, head_dim) * m
        return bf16.encode(vpe_cases.reals(self.vector(program, vpe_cases.beats(scores, self.vpe.lanes)), n))

    def product(self, x, w):
        """FP32 codes of x @ w.T for BF16 codes (T, K), (M, K)."""
        y, record = dpe_cases.run(self.dpe, np.ascontiguousarray(x.T), w)
        np.testing.assert_array_equal(y, matmul(x, w, self.dpe.inputs, self.dpe.align_bits))
        self.cycles = int(record.cycles["o"][-1] - record.cycles["i_weights"][0])
        return y.astype(np.uint32)


def shares(score, head_dim):
    weight = np.exp((score - score.max(axis=1, keepdims=True)) / np.sqrt(head_dim))
    return weight / weight.sum(axis=1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    engines = Engines(Config.preset(options.preset))
    video = options.file or find_clip().path
    q, here, k, where, v = operands(video, options.frames)
    q, here = q[-engines.dpe.accumulators :], here[-engines.dpe.accumulators :]
    d = q.shape[1]
    rows = []

    def step(name, value, exact):
        off, scale = np.abs(value - exact), np.abs(exact).max(axis=1, keepdims=True)
        rows.append(
            [
                name,
                f"{value.shape[0]} x {value.shape[1]}",
                f"{(off / scale).max():.2e}",
                f"{np.sqrt(np.square(off / scale).mean()):.2e}",
                f"{np.linalg.norm(off) / np.linalg.norm(exact):.2e}",
                f"{engines.cycles:,}",
            ]
        )
        print(" ".join(rows[-1]), flush=True)

    real = bf16.decode
    turned_k = engines.rotate(k, where)
    step("RoPE of keys", real(turned_k), rope.rotate(real(k), where))
    turned_q = engines.rotate(q, here)
    step("RoPE of queries", real(turned_q), rope.rotate(real(q), here))
    score = engines.product(turned_q, turned_k)
    step("GEMM Q K^T", real(score, FP32), real(turned_q) @ real(turned_k).T)
    p = engines.softmax(score, d)
    step("softmax rows", real(p), shares(real(score, FP32), d))
    out = engines.product(p, np.ascontiguousarray(v.T))
    step("GEMM P V", real(out, FP32), real(p) @ real(v))
    exact = shares(rope.rotate(real(q), here) @ rope.rotate(real(k), where).T, d) @ real(v)
    engines.cycles = 0
    step("attention, end to end", real(to_bf16(out)), exact)
    head = ["", "values", "max err/row max", "rms err/row max", "Frobenius", "cycles"]
    print(table(head, rows))
    print(f"{video}: {options.frames} frames, {len(k)} keys; {options.preset}; Verilog = golden in every step")


if __name__ == "__main__":
    main()
