"""Time of selection compared with the decoder step that it serves, for decoders with random weights.

Run by hand: python -m tests.sw_model.huggingface.bench_decoder [--decoder qwen2-0.5b] [--tokens 10000] [--steps 10]
[--device cpu] [--dtype float32] [--threads 1]. The cache is filled with synthetic keys, so that no long prompt runs.
Steps with the retrieval cache and steps with all tokens (`DynamicCache`) alternate; the printed times are the best
ones. On one thread of the processor they are processor times, so that other programs disturb them little. Selection is
timed in steps of its own, in which a GPU is idle before and after it.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from sw_model.huggingface import RetrievalCache, prepare
from sw_model.huggingface.cache import RetrievalLayer, bf16_array
from sw_model.media.generator import Generator, GeneratorConfig
from sw_model.media.stream import Geometry

FRAME_TOKENS = 10
DECODERS = {
    "qwen2-0.5b": (Qwen2ForCausalLM, Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=1 << 17,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )),
    "llama3-8b": (LlamaForCausalLM, LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=1 << 17,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )),
}  # fmt: skip


class Stopwatch:
    """Sum of the times of `RetrievalLayer.select`: hash codes, clusters, mean keys, scores, thresholds, token lists."""

    def __init__(self, clock):
        self.seconds, self.running = 0.0, False
        method = RetrievalLayer.select

        def timed(*arguments):
            if not self.running:
                return method(*arguments)
            start = clock()
            result = method(*arguments)
            self.seconds += clock() - start
            return result

        RetrievalLayer.select = timed


def fill(model, tokens):
    """A retrieval cache and a full cache with the same synthetic keys and values in every layer."""
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    geometry = Geometry(layers=1, q_heads=heads, kv_heads=kv_heads, head_dim=config.hidden_size // heads)
    chunks = list(Generator(GeneratorConfig(geometry=geometry)).chunks(tokens // FRAME_TOKENS))
    frames = [
        [torch.from_numpy(x[0].astype(np.float32)).to(model.dtype).transpose(0, 1) for x in (chunk.k, chunk.v)]
        for chunk in chunks
    ]
    keys, values = (torch.cat(parts, 1)[None].to(model.device) for parts in zip(*frames, strict=True))
    arrays = [[bf16_array(x) for x in frame] for frame in frames]
    retrieval, full = RetrievalCache("resv"), DynamicCache(config=config)
    for index in range(config.num_hidden_layers):
        full.update(keys.clone(), values.clone(), index)
        retrieval.update(keys, values, index)
        retrieval.pending = None  # the keys are stored without attention
        layer = retrieval.layers[index]
        policy = retrieval.bind(model, heads, layer.store)
        layer.store.append(keys[0].transpose(0, 1), values[0].transpose(0, 1))
        for k, v in arrays:
            policy.append(index, k, v)
    return retrieval, full


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--decoder", default="qwen2-0.5b", choices=DECODERS)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()

    gpu = args.device.type == "cuda"
    where = torch.cuda.get_device_name(args.device) if gpu else f"{args.threads} threads"

    def clock():
        if gpu:
            torch.cuda.synchronize(args.device)
        return time.thread_time() if not gpu and args.threads == 1 else time.perf_counter()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, args.dtype))
    kind, config = DECODERS[args.decoder]
    with args.device:
        model = prepare(kind(config).eval())
    parameters = sum(weight.numel() for weight in model.parameters())
    retrieval, full = fill(model, args.tokens)
    clusters = statistics.mean(len(index.tables[0]) for index in retrieval.policy.index)
    print(f"{args.decoder}: {parameters / 1e6:.0f} million parameters in {args.dtype}, {where}")
    print(f"{args.tokens} tokens, {clusters:.0f} clusters in a layer")
    stopwatch = Stopwatch(clock)
    print("step                full cache   retrieval cache   selection   share of the step with the full cache")
    for new in (1, FRAME_TOKENS):
        ids = torch.randint(0, 1000, (1, new)).to(args.device)
        times = []
        for _ in range(args.steps + 1):
            row = []
            for cache, stopwatch.running in ((full, False), (retrieval, False), (retrieval, True)):
                stopwatch.seconds = 0.0
                positions = cache.get_seq_length() + torch.arange(new, device=args.device)[None]
                start = clock()
                with torch.inference_mode():
                    model(input_ids=ids, position_ids=positions, cache=cache, logits_to_keep=1)
                row.append(stopwatch.seconds if stopwatch.running else clock() - start)
            times.append(row)
        whole, cached, selection = (1e3 * min(column) for column in zip(*times[1:], strict=True))
        print(
            f"{new:3d} token{'s' if new > 1 else ' '}      {whole:10.1f} ms {cached:14.1f} ms {selection:8.2f} ms "
            f"{100 * selection / whole:12.1f} %"
        )
    figures = retrieval.statistics()
    all_bytes = sum(x.numel() * x.element_size() for layer in full.layers for x in (layer.keys, layer.values))
    print(f"retrieved: {100 * figures['ratio']:.1f} % of the past")
    print(
        f"keys and values on the device: full cache {all_bytes / 1e6:.0f} MB, retrieval cache "
        f"{figures['device_bytes'] / 1e6:.0f} MB and {retrieval.block_bytes / 1e6:.1f} MB in a step"
    )


if __name__ == "__main__":
    main()
