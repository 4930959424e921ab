"""How far the vector engine's results on keys of a real video are from float64: an error table.

Run by hand: python tests/hw/lxe/bench_vpe_error.py [--preset small] [--frames 24] [--file VIDEO]. Queries and keys come
from the front end; the programs run in the generated Verilog, which must equal the golden engine bit for bit. float64
starts from the same BF16 queries and keys, so the scores' own rounding is part of the softmax row's error.
"""

import argparse
from pathlib import Path

import numpy as np

from compiler import vector_programs as programs
from golden import bf16, dot, rope
from golden.vpe import VectorEngine, widen
from hw.config import Config
from hw.lxe.vpe import VPE
from sw_model.media.clip import find_clip
from sw_model.media.keys import FrontEnd, video_chunks
from tests.hw.lxe.vpe_cases import beats, from_pairs, reals, rope_stream, run
from util.text import table

LAYER, MOVE = 0, -160  # decoder layer; tokens by which a window moves on


def codes(array):
    """bfloat16 numbers as FP32 codes."""
    return widen(np.ascontiguousarray(array).view(np.uint16))


def cases(chunks, geometry, lanes):
    """(name, program, stream, unpack, float64 reference) of every row of the table."""
    d = geometry.head_dim
    keys = np.concatenate([chunk.k[LAYER] for chunk in chunks])  # (N, Hkv, d)
    queries, group = chunks[-1].q[LAYER][-1], geometry.q_heads // geometry.kv_heads
    scores, exact = [], []
    for h in range(geometry.kv_heads):
        q, k = queries[h * group : (h + 1) * group], keys[:, h]
        scores.append(dot.matmul(*(np.ascontiguousarray(x).view(np.uint16) for x in (q, k)), 64))
        exact.append(q.astype(np.float64) @ k.astype(np.float64).T)
    scores, exact = np.concatenate(scores), np.concatenate(exact) / np.sqrt(d)
    weight = np.exp(exact - exact.max(axis=1, keepdims=True))
    n = len(keys)
    row = {"stream": beats(scores, lanes), "unpack": lambda rows: reals(rows, n)}
    yield (
        "softmax row",
        programs.softmax(n, lanes, d) * len(scores),
        *row.values(),
        weight / weight.sum(axis=1, keepdims=True),
    )
    yield "exp row", programs.exponentials(n, lanes, d) * len(scores), *row.values(), weight

    last = chunks[-1].k[LAYER]
    here = float(chunks[-1].positions[-1])
    flat = rope.rotate(last[-1].astype(np.float64), -here)
    for name, vectors, by in (
        (f"RoPE to position {here:.0f}", bf16.encode(flat), here),
        (f"re-rotation by {MOVE}", last.reshape(-1, d).view(np.uint16), float(MOVE)),
    ):
        yield (
            name,
            programs.rope(d, lanes, len(vectors)),
            rope_stream(widen(vectors), by * rope.frequencies(d), lanes),
            lambda rows: from_pairs(rows, d, lanes),
            rope.rotate(bf16.decode(vectors), by),
        )

    heads = last.swapaxes(0, 1)  # (Hkv, T, d)
    start = np.zeros((len(heads), 1, d), np.uint32)
    yield (
        "mean of a frame's keys",
        programs.running_mean(d, lanes, 0, len(last)) * len(heads),
        beats(np.concatenate([start, codes(heads)], axis=1).reshape(-1, d), lanes),
        lambda rows: reals(rows, d),
        heads.astype(np.float64).mean(axis=1),
    )
    wide = last.reshape(len(last), -1)
    values, m = wide.astype(np.float64), wide.shape[1]
    yield (
        "squared key norm",
        programs.key_norms(m, lanes, len(wide)),
        beats(codes(wide), lanes),
        lambda rows: reals(rows, lanes)[:, :1],
        np.square(values).sum(axis=1, keepdims=True),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    unit = VPE.from_config(Config.preset(options.preset))
    clip = find_clip()
    front_end = FrontEnd()
    chunks = [c for _, c in video_chunks(options.file or clip.path, front_end, max_frames=options.frames)]
    work = list(cases(chunks, front_end.config.geometry, unit.lanes))

    program, stream = [op for case in work for op in case[1]], np.concatenate([case[2] for case in work])
    got = run(unit, program, stream).outputs["o"]
    golden = VectorEngine(unit.lanes, unit.rows).run(program, stream)
    rows, start = [], 0
    for name, part, _, unpack, exact in work:
        end = start + sum(op.results for op in part)
        same = np.array_equal(got[start:end], golden[start:end])
        value = unpack(got[start:end])
        off = np.abs(value - exact)
        scale = np.abs(exact).max(axis=1, keepdims=True)
        relative = off[exact != 0] / np.abs(exact[exact != 0])
        rows.append(
            [
                name,
                "x".join(map(str, exact.shape)),
                "yes" if same else "NO",
                f"{(off / scale).max():.2e}",
                f"{np.sqrt(np.square(off / scale).mean()):.2e}",
                f"{relative.max():.2e}",
                f"{np.median(relative):.2e}",
                f"{unit.cycles(part)}",
            ]
        )
        start = end
    print(f"{options.file or clip.name}: {options.frames} frames; VPE of {unit.lanes} lanes ({options.preset})")
    head = [
        "",
        "values",
        "RTL = golden",
        "max err/row max",
        "rms err/row max",
        "max relative",
        "median relative",
        "cycles",
    ]
    print(table(head, rows))


if __name__ == "__main__":
    main()
