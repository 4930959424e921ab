"""The array of a machine before its first program, and the compiled processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from hw.config import Config
from hw.core.isa import COMMAND_BYTES
from hw.core.load_unit import MAX_OPEN_RUNS
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.retrieval import page_lists
from hw.core.sequencer import QUEUE_DEPTHS
from hw.core.vector.command import INSTRUCTION_BYTES
from hw.dre.kvmu.kvmu import WAITING_EXTENTS
from hw.dre.kvmu.records import BLOCK_BYTES
from hw.dre.wtu.wtu import WTU
from hw.kv_codec.page_decoder import record_decoder
from hw.kv_codec.page_encoder import record_encoder
from hw.kv_codec.page_layout import PageLayout
from hw.lxe.dpe import DPE
from hw.lxe.vpe import VPE
from hw.lxe.vpe_lane import STAGES
from hw.weight_codec.tile_layout import BF16_BITS, TileLayout
from hw.weight_codec.tile_layout import ENCODED as ENCODED_WEIGHTS
from sw_model.cycles import (
    copy_unit,
    kvmu,
    load_unit,
    matrix_unit,
    ports,
    retrieval_unit,
    scheduler,
    sequencer,
    vector_unit,
)  # fmt: skip
from sw_model.cycles.layout import (
    DEPTH,
    MAX_LINES,
    PROCESSES,
    WHEEL,
    Count,
    Engine,
    Queue,
    machine_size,
    place,
)  # fmt: skip
from sw_model.cycles.native import Processes
from sw_model.cycles.scheduler import Process
from sw_model.cycles.translate import Module

RUNNING: list[Callable[..., Any]] = [
    scheduler.following,
    scheduler.start,
    scheduler.schedule,
    scheduler.release,
    scheduler.wait_for,
]

# Processes of a core that run from the start, in the order in which they start
UNITS: list[Process] = [
    copy_unit.move_words,
    load_unit.request_operands,
    load_unit.write_operands,
    matrix_unit.accept_products,
    matrix_unit.multiply,
    matrix_unit.write_results,
    matrix_unit.end_products,
    vector_unit.accept_vectors,
    vector_unit.instruct,
    vector_unit.fetch_rows,
    vector_unit.feed,
    vector_unit.compute,
    vector_unit.drain,
    vector_unit.end_vectors,
    kvmu.execute_store,
    kvmu.write_lists,
    kvmu.split_extents,
    kvmu.issue_descriptors,
    retrieval_unit.execute_retrieval,
    retrieval_unit.receive_codes,
    retrieval_unit.search,
    retrieval_unit.assign,
    copy_unit.issue_copies,
    copy_unit.end_copies,
    sequencer.meet,
]
OTHERS: list[Process] = [
    copy_unit.write_encoded,
    scheduler.ring_bell,
    scheduler.add_later,
    ports.serve,
    ports.read_burst,
    ports.write_burst,
    ports.issue_bursts,
    ports.count_word,
    load_unit.read_list,
    matrix_unit.count_read,
    matrix_unit.request_results,
    matrix_unit.give_credit,
    vector_unit.request_code,
    kvmu.complete_transfers,
    retrieval_unit.record_slot,
    retrieval_unit.list_clusters,
    retrieval_unit.report_beats,
    retrieval_unit.request_rows,
    sequencer.sequence,
]
PROCESS_KINDS = UNITS + OTHERS
DEPTHS = {
    **{Queue[unit.name]: depth for unit, depth in QUEUE_DEPTHS.items()},
    Queue.CODES: 1, Queue.ROUTES: 16, Queue.FILL: 4,
    Queue.MULTIPLY: 1, Queue.RESULTS_OF: 1, Queue.MATRIX_ENDS: 4, Queue.INSTRUCT: 1, Queue.FETCH: 1, Queue.DRAIN: 1,
    Queue.CODE: 4, Queue.PIECES: 8, Queue.BEATS: 1, Queue.OUT: STAGES + 3, Queue.VECTOR_ENDS: 4, Queue.ASSIGNED: 1,
    Queue.STORE: 2, Queue.ENTRIES: page_lists.QUEUE_DEPTH, Queue.EXTENTS: WAITING_EXTENTS + 1, Queue.DESCRIPTORS: 2,
    Queue.RUNS: MAX_OPEN_RUNS,
}  # fmt: skip  # of the others: no limit
LATENCIES = {
    Queue.CODES: 0, Queue.MULTIPLY: 0, Queue.RESULTS_OF: 0, Queue.RESULTS: 0, Queue.INSTRUCT: 0, Queue.FETCH: 0,
    Queue.DRAIN: 0, Queue.BEATS: 0, Queue.JOINED: 0, Queue.AVERAGED: 0, Queue.ASSIGNED: 1, Queue.STORE: 1,
    Queue.EXTENTS: 3, Queue.DESCRIPTORS: 1,
}  # fmt: skip  # of the others: 2
ENCODED = ("key_block_words", "word_units", "record_units", "key_units")
HOST_DEPTHS = {Engine.READ_HOST: 64, Engine.WRITE_HOST: 32}


def _codec(pages: PageLayout) -> dict[str, int]:
    """Numbers of a machine with encoded pages."""
    latencies = {"encoder_latency": record_encoder(pages).latency, "decoder_latency": record_decoder(pages).latency}
    return {name: getattr(pages, name) for name in ENCODED} | latencies


def new_machine(config: Config, cores: int) -> np.ndarray:
    """Machine of some cores before cycle 0."""
    m = np.zeros(machine_size(cores), np.int64)
    word, vpe, dpe = 2 * config.dpe_inputs, VPE.from_config(config), DPE.from_config(config)
    pages = PageLayout(head_dim=config.head_dim, page_tokens=config.page_tokens, word=8 * word, kv_bits=config.kv_bits)
    if config.cache_lines > MAX_LINES:
        raise ValueError(f"cache_lines must be at most {MAX_LINES}, got {config.cache_lines}")
    numbers = {
        "cores": cores,
        "device_ports": min(config.device_ports, cores),
        "word_bytes": word,
        "width": config.dpe_inputs,
        "head_words": config.head_dim // config.dpe_inputs,
        "kv_heads": config.kv_heads,
        "page_words": pages.head_page_bytes * 8 // pages.word,
        "encoded": int(pages.is_encoded),
        "block_tokens": pages.block_tokens,
        **(_codec(pages) if pages.is_encoded else {}),
        "decodes": int(config.weight_bits != BF16_BITS),
        "max_step_tokens": config.max_step_tokens,
        "loads": dpe.loads,
        "engine_latency": dpe.latency,
        "fold_cycles": vpe.fold_cycles,
        "divide_cycles": vpe.divide_cycles,
        "wtu_lanes": config.wtu_lanes,
        "wtu_pairs": config.wtu_pairs,
        "list_beats": WTU.from_config(config).sizes.list_beats,
        "lines": config.cache_lines,
        "line_words": max(BLOCK_BYTES, word) // word,
        "line_blocks": max(1, word // BLOCK_BYTES),
        "record_words": max(1, BLOCK_BYTES // word),
        "word_records": max(1, word // BLOCK_BYTES),
        "list_words": page_lists.list_words(config.max_pages, 8 * word),
        "list_entries": 8 * word // page_lists.LIST_ENTRY.size,
        "code_words": max(1, INSTRUCTION_BYTES // word),
        "word_codes": max(1, word // INSTRUCTION_BYTES),
        "command_words": max(1, COMMAND_BYTES // word),
        "word_commands": max(1, word // COMMAND_BYTES),
    }
    for name, value in numbers.items():
        m[place(name)] = value
    if config.weight_bits != BF16_BITS:
        tiles = TileLayout(config.dpe_inputs)
        for encoding in ENCODED_WEIGHTS:
            m[place("tile_headers", encoding)] = tiles.header_words(encoding)
            m[place("tile_codes", encoding)] = tiles.code_words(encoding)
    for name, count in (("first", WHEEL), ("last", WHEEL)):
        m[place(name, 0) : place(name, 0) + count] = -1
    m[place("next", 0) : place("next", 0) + PROCESSES] = [*range(1, PROCESSES), -1]
    sizes = {Engine[f"READ_{name.upper()}"]: depth for name, (_, depth) in READ_ENGINES.items()}
    sizes |= {Engine[f"WRITE_{name.upper()}"]: depth for name, (_, depth) in WRITE_ENGINES.items()} | HOST_DEPTHS
    for c in range(cores):
        bells = place("bell_first", c, 0)
        m[bells : place("bell_last", c, 0)] = -1
        for queue in Queue:
            m[place("depth", c, queue)] = DEPTHS.get(queue, DEPTH)
            m[place("latency", c, queue)] = LATENCIES.get(queue, 2)
        m[place("depth", c, Queue.HASH_CODES)] = config.max_step_tokens
        for engine, depth in sizes.items():
            m[place("size", c, engine)] = depth
        m[place("value", c, Count.CREDITS)] = dpe.latency + 1
        m[place("evicted", c)] = -1
        m[place("accepted", c, 0) : place("accepted", c, 0) + 2] = -1
        m[place("tag", c, 0) : place("tag", c, 0) + MAX_LINES] = -1
    starts: list[tuple[Process, int, int]] = [
        (ports.serve, 0, port) for port in range(1 + min(config.device_ports, cores))
    ]
    starts += [(process, c, 0) for c in range(cores) for process in UNITS]
    for process, c, argument in starts:
        compiled().start(m, m, c, PROCESS_KINDS.index(process), 0, argument, 0, 0, 0)
    return m


@cache
def compiled() -> Processes:
    """The compiled processes."""
    return Processes(Module(PROCESS_KINDS, RUNNING).source())
