"""On-chip memories of the retrieval engine."""

import re

from hw.config import Config
from hw.dre.kvpu import KVPU
from hw.emit import to_rtlil

PAPER = Config.preset("paper")
PUBLISHED_BITS = 164_864  # 20.125 KiB (V-Rex, section VI-F)


def test_memories_of_the_paper_preset_have_at_most_20_125_kib():
    bits = KVPU.from_config(PAPER).memory_bits
    assert {name.split("_")[0] for name in bits} == {"hcu", "wtu", "kvmu"}
    assert sum(bits.values()) <= PUBLISHED_BITS


def test_memory_bits_are_those_of_the_rtl():
    """Queues of at most 16 beats are registers and do not count; a queue keeps its last beat in a register.

    The lines of the store are in memories of 256 bits, one for each block of a line.
    """
    unit = KVPU.from_config(PAPER)
    sizes = [
        (int(width), int(depth))
        for width, depth in re.findall(r"memory width (\d+) size (\d+)", to_rtlil(unit, "kvpu"))
    ]
    queues = PAPER.hash_bits + 1, unit.wtu.sizes.mask.size, unit.kvmu.sizes.piece.size
    buckets = 16 * PAPER.wtu_buckets * 52
    large = sum(width * depth for width, depth in sizes if depth > 16 or (depth == 16 and width >= 52) or width == 256)
    assert unit.memory_bits["wtu_buckets"] == buckets
    assert large == sum(unit.memory_bits.values()) - sum(queues)
