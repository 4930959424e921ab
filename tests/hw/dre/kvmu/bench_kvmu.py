"""Cost of a selection on the host link: pages of clusters compared with arrival order.

Run `python -m tests.hw.dre.kvmu.bench_kvmu`.

A stream is clustered; every so often its queries select, and the same selection is fetched from two page tables: one
with the pages of a cluster together, one with a unit per token in order of arrival. Counted are the contiguous reads
of a fetch, the descriptors they become (4 KiB at most, none across 4 KiB), and what of the link's rate is payload.
With `--area`, the mapped area of the DRE's units at the paper's sizes, compared with V-Rex Table III (minutes).
"""

import argparse

import numpy as np

from golden.page_table import PageTable, PagingConfig, descriptors
from golden.resv import ResvConfig, ResvLayer
from hw.config import Config
from sw_model.media.clip import find_clip
from sw_model.media.generator import Generator, coin
from sw_model.media.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.media.stream import Geometry
from sw_model.memory.pcie import PACKET_BYTES, PcieLink
from sw_model.systems import load_system
from synth.area import area
from util.text import table

LAYOUTS = ("clustered", "arrival")
DESCRIPTOR_BYTES = 32 + PACKET_BYTES + 12  # the engine reads its descriptors over the same link
LXE_MM2, DRE_PERCENT = 1.37 + 0.14 + 0.34, 2.0  # V-Rex, Table III, 14 nm


def generator(stage, tokens=20_000, seed=901):
    """Chunks of the generator, and whether each one asks: 16 frames or text turns at the end."""
    source = Generator(coin(seed=seed))
    for n in range(tokens // 10):
        asks = n >= tokens // 10 - 16
        yield (source.text(10) if asks and stage == "text" else source.frame()), asks


def video(frames=250):
    """Frames of a real clip through the front end; every eighth of the last half asks."""
    front_end = FrontEnd(FrontEndConfig(geometry=Geometry(layers=1), grid=5))
    for n, (_, chunk) in enumerate(video_chunks(find_clip().path, front_end, max_frames=frames)):
        yield chunk, n >= frames // 2 and n % 8 == 0


def measure(chunks, max_resident_tokens):
    """Per layout, the extents of every fetch, int64 (E, 2); tokens and clusters of the stream."""
    layer, fetches = ResvLayer(ResvConfig(), 8, 128), {layout: [] for layout in LAYOUTS}
    pages = {
        layout: PageTable(PagingConfig(max_resident_tokens=max_resident_tokens, layout=layout), 8, 128)
        for layout in LAYOUTS
    }
    for chunk, asks in chunks:
        past = layer.tokens
        assigned = layer.append(chunk.k[0], chunk.stage)
        tokens = layer.select(chunk.q[0], past).tokens if asks else None
        for layout, unit in pages.items():
            if tokens is not None:
                fetches[layout].append(unit.fetch(tokens).extents)
            unit.append(assigned[0].cluster)
    return fetches, layer.tokens, len(layer.tables[0])


def link_ns(link, sizes):
    """Time of descriptors of these bytes, back to back: wire, tags, or the descriptor engine."""
    wire = np.array([link.read_wire_bytes(int(size)) + DESCRIPTOR_BYTES for size in sizes]) / link.packet_gbps
    return np.maximum.reduce(
        [wire, sizes / [link.tag_limit_gbps(int(s)) for s in sizes], wire * 0 + link.descriptor_ns]
    )


def rows(name, fetches, links):
    for layout, extents in fetches.items():
        parts = [descriptors(extent, 4096)[:, 1] for extent in extents]
        count, sizes = len(extents), np.concatenate(parts)
        total = sizes.sum()
        distinct, times = np.unique(sizes, return_counts=True)
        shares = []
        for link in links.values():
            wire = sum(
                n * (link.read_wire_bytes(int(s)) + DESCRIPTOR_BYTES) for s, n in zip(distinct, times, strict=True)
            )
            rate = total / (link_ns(link, distinct) * times).sum()
            shares += [f"{100 * total / wire:.1f}", f"{100 * rate / link.raw_gbps:.1f}"]
        yield [
            name,
            layout,
            f"{total / count / 2**20:.2f}",
            f"{sum(map(len, extents)) / count:.0f}",
            f"{total / sum(map(len, extents)):.0f}",
            f"{len(sizes) / count:.0f}",
            f"{total / len(sizes):.0f}",
            *shares,
        ]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--area", action="store_true")
    links = {}
    for name in ("vrex8", "vrex48"):
        link = load_system(name).link
        links[f"gen{link.generation} x{link.lanes}"] = PcieLink(link.generation, link.lanes)
    head = ["stream", "layout", "MiB/fetch", "extents", "B/extent", "descriptors", "B/descr."]
    lines = [head + [f"{what} % {name}" for name in links for what in ("payload", "of raw")]]
    cases = (
        ("generator, frames", generator("frame"), 4096),
        ("generator, text", generator("text"), 4096),
        ("video", video(), 1024),
    )
    for name, chunks, max_resident_tokens in cases:
        fetches, tokens, clusters = measure(chunks, max_resident_tokens)
        lines += rows(f"{name}: {tokens} tokens, {clusters} clusters", fetches, links)
    print(table(lines[0], lines[1:]))
    if options.parse_args().area:
        areas = {unit: area(unit, Config.preset("paper")) for unit in ("hcu", "wtu", "kvmu")}
        lines = [["unit", "NAND2", "logic um2", "memory bits", "memory um2"]]
        lines += [[u, *map(round, (a.nand2, a.area_um2, a.memory_bits, a.macro_um2))] for u, a in areas.items()]
        print(table(lines[0], [[str(cell) for cell in line] for line in lines[1:]]))
        logic, memory = (sum(getattr(a, part) for a in areas.values()) / 1e6 for part in ("area_um2", "macro_um2"))
        for what, mm2 in (("logic", logic), ("logic and memories", logic + memory)):
            share = 100 * mm2 / (LXE_MM2 + mm2)
            print(f"{what}: {mm2:.3f} mm2, {share:.1f} % of a core with Table III's LXE; Table III: {DRE_PERCENT} %")


if __name__ == "__main__":
    main()
