"""Memory and time of a long synthetic stream with the retrieval cache.

Run by hand: python -m tests.sw_model.huggingface.bench_stream [--hours 1] [--policy resv] [--device cpu]
[--session FOLDER] [--json]. A small decoder with random weights reads two frames of ten tokens per second and answers a
question every minute. With --session the state is saved every five minutes, and a run that was killed continues from
there.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sw_model.huggingface import StreamingSession

FRAME_TOKENS, FRAMES_PER_MINUTE, SCENE_MINUTES, SAVE_MINUTES = 10, 120, 3, 5
QUESTION, ANSWER_TOKENS = [1, 2, 3], 4
MINUTE_TOKENS = FRAMES_PER_MINUTE * FRAME_TOKENS + len(QUESTION) + ANSWER_TOKENS
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 1 << 20,
}  # fmt: skip


def resident_bytes() -> int:
    """Memory of this process: program, libraries, model, index, keys and values."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allocated_bytes(device: torch.device) -> int:
    """Largest memory of a GPU that this process had in use so far: weights, keys and values, all work of a step."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def make_model(sharpness: float) -> LlamaForCausalLM:
    """A decoder with random weights; `sharpness` is a factor of its query weights."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(sharpness)
    return model


def stream(session: StreamingSession, minutes: int) -> Iterator[dict[str, Any]]:
    """Continue a session up to a minute of the stream; figures of every minute.

    The frames of a scene are similar, so that their keys form clusters.
    """
    for minute in range(session.cache.tokens // MINUTE_TOKENS + 1, minutes + 1):
        scene = torch.Generator().manual_seed(minute // SCENE_MINUTES)
        base = torch.randn((1, FRAME_TOKENS, SIZES["hidden_size"]), generator=scene)
        generator = torch.Generator().manual_seed(1000 + minute)
        start = time.perf_counter()
        for _ in range(FRAMES_PER_MINUTE):
            session.frame(inputs_embeds=base + 0.1 * torch.randn(base.shape, generator=generator))
        frame_ms = (time.perf_counter() - start) / FRAMES_PER_MINUTE * 1e3
        answer = session.ask(QUESTION, max_new_tokens=ANSWER_TOKENS, end=-1)
        figures = session.cache.statistics()
        yield {
            "minute": minute, **figures, "block_bytes": session.cache.block_bytes,
            "resident_bytes": resident_bytes(), "allocated_bytes": allocated_bytes(session.model.device),
            "frame_ms": frame_ms, "answer": answer.tokens,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--policy", default="resv")
    parser.add_argument("--device-tokens", type=int, default=4096)
    parser.add_argument("--sharpness", type=float, default=40.0, help="factor of the random query weights")
    parser.add_argument("--device", default="cpu", help="PyTorch device of the model")
    parser.add_argument("--session", type=Path, help="folder of the saved state")
    parser.add_argument("--json", action="store_true", help="one line of JSON for every minute")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model(args.sharpness).to(args.device)
    if args.session is not None and args.session.exists():
        session = StreamingSession.resume(model, args.session)
    else:
        session = StreamingSession(model, policy=args.policy, device_tokens=args.device_tokens)
    minutes = max(1, round(args.hours * 60))
    if not args.json:
        print("minute  tokens  device MB  allocated MB  host MB  retrieved %  frame ms")
    for row in stream(session, minutes):
        if args.session is not None and row["minute"] % SAVE_MINUTES == 0:
            session.save(args.session)
        if args.json:
            print(json.dumps(row), flush=True)
        elif row["minute"] % max(1, minutes // 12) == 0:
            print(
                f"{row['minute']:6d} {row['tokens']:7d} {row['device_bytes'] / 1e6:10.2f} "
                f"{row['allocated_bytes'] / 1e6:13.2f} {row['host_bytes'] / 1e6:8.2f} {100 * row['ratio']:12.1f} "
                f"{row['frame_ms']:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
