"""Memory and time of a long synthetic stream with the retrieval cache.

Run by hand: python -m tests.sw_model.huggingface.bench_stream [--hours 1] [--policy resv] [--plot memory.svg]. A small
decoder with random weights reads two frames of ten tokens per second and is asked a question every minute. The table
and the plot show tokens, bytes on the device and on the host, and the time of a frame.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sw_model.huggingface import StreamingSession

FRAME_TOKENS, FRAMES_PER_SECOND = 10, 2


def scene(generator, hidden):
    """Embedding of the scene: the frames of a scene are similar, so that their keys form clusters."""
    return torch.randn((1, FRAME_TOKENS, hidden), generator=generator)


def plot(path, rows):
    """Bytes on the device and on the host over the time of the stream."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    minutes = [row[0] for row in rows]
    axes.plot(minutes, [row[3] / 1e6 for row in rows], label="host memory")
    axes.plot(minutes, [row[2] / 1e6 for row in rows], label="device memory")
    axes.set_xlabel("time of the stream in minutes")
    axes.set_ylabel("keys and values in MB")
    axes.legend()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--policy", default="resv")
    parser.add_argument("--device-tokens", type=int, default=4096)
    parser.add_argument("--sharpness", type=float, default=20.0, help="factor of the random query weights")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, max_position_embeddings=1 << 20,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(args.sharpness)
    session = StreamingSession(model, policy=args.policy, device_tokens=args.device_tokens)
    generator = torch.Generator().manual_seed(1)
    rows = []
    current = scene(generator, 128)
    print("minute  tokens  device MB  host MB  retrieved %  frame ms")
    start = time.perf_counter()
    minutes = max(1, round(args.hours * 60))
    for minute in range(1, minutes + 1):
        if minute % 3 == 0:
            current = scene(generator, 128)
        for _ in range(60 * FRAMES_PER_SECOND):
            noise = torch.randn(current.shape, generator=generator)
            session.frame(inputs_embeds=current + 0.1 * noise)
        now = time.perf_counter()
        frame_ms = (now - start) / (60 * FRAMES_PER_SECOND) * 1e3
        session.ask([1, 2, 3], max_new_tokens=4, end=-1)
        figures = session.cache.statistics()
        rows.append((minute, figures["tokens"], figures["device_bytes"], figures["host_bytes"]))
        if minute % max(1, minutes // 12) == 0:
            print(
                f"{minute:6d} {figures['tokens']:7d} {figures['device_bytes'] / 1e6:10.2f} "
                f"{figures['host_bytes'] / 1e6:8.2f} {100 * figures['ratio']:12.1f} {frame_ms:9.1f}",
                flush=True,
            )
        start = time.perf_counter()
    if args.plot:
        plot(args.plot, rows)
        print(args.plot)


if __name__ == "__main__":
    main()
