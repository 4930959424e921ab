"""The register map of the core."""

from collections.abc import Mapping

from amaranth import Shape
from amaranth.hdl import ShapeLike

from hw.axi.ports import WORD_BITS, Cause
from hw.axi.registers import Access, Register, RegisterMap
from hw.core.isa import ExecUnit
from hw.core.sequencer import PROGRAM_BITS

VERSION = 1
START, CLEAR = 0, 1  # bits of `control`
DONE, FAILED = 0, 1  # bits of `events`
SEQUENCER = len(ExecUnit)  # the source of a fault that no unit made
SOURCE_BITS = 4
COUNTERS = {
    "cycles": "cycles in which a program ran",
    "stalled": "of these, cycles in which no unit had a command under way",
    **{f"busy_{unit.name.lower()}": f"of these, cycles with {unit.name} commands under way" for unit in ExecUnit},
    **{f"done_{unit.name.lower()}": f"{unit.name} commands completed" for unit in ExecUnit},
    "matrix_beats": "beats that the matrix engine took",
    "vector_beats": "beats that the vector engine gave",
    **{
        f"{side}_{name}": f"{side} port: {text}"
        for side in ("device", "host")
        for name, text in (
            ("read", "words read"),
            ("write", "words written"),
            ("read_wait", "cycles in which a read burst waited"),
            ("write_wait", "cycles in which a write burst or word waited"),
        )
    },
}
ADDRESSES = {
    "device_start": "byte address of the device region, a multiple of 4 KiB",
    "host_start": "byte address of the host region, a multiple of 4 KiB",
}
SETTINGS = {
    "hamming_threshold": "Hamming distance below which a token joins a cluster",
    "hamming_inclusive": "1: or at which",
    "first_match": "1: it joins the lowest cluster that matches, not the nearest",
    "window_tokens": "tokens back to which clusters take new ones; 0: no limit",
    "max_cluster_tokens": "tokens of a full cluster",
    "cluster_records_base": "byte address of the clusters' records, a multiple of 16",
    "token_lists_base": "byte address of the token lists",
    "list_links_base": "byte address of their links",
    "mean_keys_base": "byte address of the representative keys, whole words",
    "selection_mode": "0 ratio, 1 budget, 2 count",
    "key_order": "keys: 0 plain, 1 signed, 2 reversed",
    "selection_target": "ratio in 1/65536, or number to reach",
    "refine_levels": "how often the last bucket is divided again",
    "page_frames_base": "byte address of the frames of pages on the device",
    "host_pages_base": "byte address of the pages in host memory",
    "staging_base": "byte address of the staging area",
    "staging_head_pages": "(page, head) units of each of its two banks",
    "storage_pages_base": "byte address of the pages in storage",
    "max_resident_tokens": "tokens that stay on the device after a step",
    "offload_to_storage": "1: pages go to storage, not to host memory",
    "max_descriptor_bytes": "longest descriptor, whole words; 0: 4096",
    "retain_fetched": "1: fetched pages stay on the device",
}
EVENTS = (("done", DONE, 1, "a program has ended"), ("fault", FAILED, 1, "the core has stopped on a fault"))


def settings(ports: Mapping[str, ShapeLike]) -> tuple[Register, ...]:
    """Registers of the KV prediction unit's settings, `cfg_` left out."""
    known = {name.removeprefix("cfg_"): Shape.cast(shape).width for name, shape in ports.items()}
    return tuple(Register(name, width, Access.RW, SETTINGS[name]) for name, width in known.items())


def registers(settings: tuple[Register, ...] = ()) -> RegisterMap:
    """The map; `settings` are what the units of a core add."""
    causes = ", ".join(f"{cause.value} {cause.name}" for cause in Cause)
    sources = ", ".join(f"{unit.value} {unit.name}" for unit in ExecUnit)
    return RegisterMap(
        "vrex",
        (
            Register("version", 32, Access.RO, "version of this map; bits of a word above 16", bits=(
                ("version", 0, 16, "of this map"), ("word", 16, 16, "bits of a word of memory"))),
            Register("control", 2, Access.PULSE, "acts", bits=(
                ("start", START, 1, "run the program, unless busy or stopped"),
                ("clear", CLEAR, 1, "forget a fault, when stopped"))),
            Register("status", 3, Access.RO, "state", bits=(
                ("busy", 0, 1, "a program runs"),
                ("stopping", 1, 1, "a fault has come, transfers in flight come to their end"),
                ("stopped", 2, 1, "stopped on a fault, waits for `clear`"))),
            Register("events", 2, Access.CLEAR, "events", bits=EVENTS),
            Register("events_enable", 2, Access.RW, "which of them raise the interrupt", bits=EVENTS),
            Register("cause", 4 + SOURCE_BITS, Access.RO, "of the fault", bits=(
                ("cause", 0, 4, causes), ("source", 4, SOURCE_BITS, f"{sources}, {SEQUENCER} the sequencer"))),
            Register("fault_address", WORD_BITS, Access.RO,
                     "word of the burst or job, or number of the command"),
            Register("program", WORD_BITS, Access.RW, "first word of the program"),
            Register("commands", PROGRAM_BITS, Access.RW, "commands of the program, END included"),
            Register("position", PROGRAM_BITS, Access.RO, "commands decoded"),
            *(Register(name, 48, Access.RW, text) for name, text in ADDRESSES.items()),
            Register("device_words", WORD_BITS + 1, Access.RW, "words of the device region"),
            Register("host_words", WORD_BITS + 1, Access.RW, "words of the host region"),
            *settings,
            Register("clear_counters", 1, Access.PULSE, "zeroes the counters"),
            *(Register(name, 32, Access.RO, text) for name, text in COUNTERS.items()),
        ),
    )  # fmt: skip
