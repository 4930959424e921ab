"""Time of selection compared with the decoder step that it serves: a decoder with the shapes of Qwen2-0.5B on a CPU.

Run by hand: python -m tests.sw_model.huggingface.bench_decoder [--tokens 10000] [--steps 10] [--dtype bfloat16]
[--threads 1]. The weights are random. The cache is filled with synthetic keys, so that no long prompt runs. Steps with
the retrieval cache and steps with all tokens (`DynamicCache`) alternate; the printed times are the best ones. With one
thread they are processor times, so that other programs disturb them little.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from sw_model.huggingface import RetrievalCache, prepare
from sw_model.huggingface.cache import RetrievalLayer, bf16_array
from sw_model.media.generator import Generator, GeneratorConfig
from sw_model.media.stream import Geometry

QWEN2_05B = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
HEADS, KV_HEADS, HEAD_DIM, FRAME_TOKENS = 14, 2, 64, 10


class Stopwatch:
    """Sum of the times of `RetrievalLayer.select`: hash codes, clusters, mean keys, scores, thresholds, token lists."""

    def __init__(self, clock):
        self.seconds = 0.0
        method = RetrievalLayer.select

        def timed(*arguments):
            start = clock()
            result = method(*arguments)
            self.seconds += clock() - start
            return result

        RetrievalLayer.select = timed


def fill(model, tokens):
    """A retrieval cache and a full cache with the same synthetic keys and values in every layer."""
    geometry = Geometry(layers=1, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    chunks = list(Generator(GeneratorConfig(geometry=geometry)).chunks(tokens // FRAME_TOKENS))
    frames = [
        [torch.from_numpy(x[0].astype(np.float32)).to(model.dtype).transpose(0, 1) for x in (chunk.k, chunk.v)]
        for chunk in chunks
    ]
    keys, values = (torch.cat(parts, 1)[None] for parts in zip(*frames, strict=True))
    retrieval, full = RetrievalCache("resv"), DynamicCache(config=model.config)
    for index in range(model.config.num_hidden_layers):
        full.update(keys, values, index)
        retrieval.update(keys, values, index)
        retrieval.pending = None  # the keys are stored without attention
        layer = retrieval.layers[index]
        policy = retrieval.bind(model, HEADS, layer.store)
        for k, v in frames:
            layer.store.append(k.transpose(0, 1), v.transpose(0, 1))
            policy.append(index, bf16_array(k), bf16_array(v))
    return retrieval, full


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, args.dtype))
    model = prepare(Qwen2ForCausalLM(Qwen2Config(**QWEN2_05B)).eval())
    parameters = sum(weight.numel() for weight in model.parameters())
    retrieval, full = fill(model, args.tokens)
    clusters = statistics.mean(len(index.tables[0]) for index in retrieval.policy.index)
    print(f"{parameters / 1e6:.0f} million parameters in {args.dtype}, {torch.get_num_threads()} threads")
    print(f"{args.tokens} tokens, {clusters:.0f} clusters in a layer")
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    stopwatch = Stopwatch(clock)
    print("step                full cache   retrieval cache   selection   share of the step with the full cache")
    for new in (1, FRAME_TOKENS):
        ids = torch.randint(0, 1000, (1, new))
        times = []
        for _ in range(args.steps + 1):
            row = []
            for cache in (full, retrieval):
                stopwatch.seconds = 0.0
                positions = cache.get_seq_length() + torch.arange(new)[None]
                start = clock()
                with torch.inference_mode():
                    model(input_ids=ids, position_ids=positions, past_key_values=cache, logits_to_keep=1)
                row.append(clock() - start)
            times.append([*row, stopwatch.seconds])
        whole, cached, selection = (1e3 * min(column) for column in zip(*times[1:], strict=True))
        print(
            f"{new:3d} token{'s' if new > 1 else ' '}      {whole:10.1f} ms {cached:14.1f} ms {selection:8.2f} ms "
            f"{100 * selection / whole:12.1f} %"
        )
    print(f"retrieved: {100 * retrieval.statistics()['ratio']:.1f} % of the past")


if __name__ == "__main__":
    main()
