"""Register map of the core."""

from collections.abc import Mapping

from amaranth import Shape
from amaranth.hdl import ShapeLike

from hw.axi.ports import WORD_ADDRESS_BITS, Cause
from hw.axi.registers import Access, Register, RegisterMap
from hw.core.isa import ExecUnit
from hw.core.sequencer import PROGRAM_BITS

VERSION = 3
START, CLEAR = 0, 1  # bits of `control`
DONE, FAILED = 0, 1  # bits of `events`
SEQUENCER = len(ExecUnit)  # fault source of the sequencer; the other sources are units
SOURCE_BITS = 4
COUNTERS = {
    "cycles": "cycles in which a program ran",
    "stalled": "of these, cycles in which no unit had a command",
    **{f"busy_{unit.name.lower()}": f"of these, cycles in which {unit.name} had commands" for unit in ExecUnit},
    **{f"done_{unit.name.lower()}": f"completed {unit.name} commands" for unit in ExecUnit},
    "matrix_beats": "beats that the matrix engine accepted",
    "vector_beats": "beats that the vector engine sent",
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
    "hamming_threshold": "Hamming distance in bits below which a token joins a cluster",
    "hamming_inclusive": "1: a token also joins at a distance equal to hamming_threshold",
    "first_match": "1: a token joins the lowest matching cluster, 0: the nearest one",
    "window_tokens": "age in tokens up to which a cluster accepts tokens; 0: no limit",
    "max_cluster_tokens": "tokens of a full cluster",
    "page_lists_base": "byte address of the page lists, a multiple of a word",
    "selection_mode": "0 ratio, 1 token budget, 2 cluster count",
    "key_order": "order of the scores: 0 unsigned, 1 signed, 2 reversed",
    "selection_target": "ratio in units of 1/65536, tokens or clusters, see selection_mode",
    "refine_levels": "number of times that the last bucket is divided again",
    "store_base": "byte address of the store, a multiple of 128",
    "page_frames_base": "byte address of the page frames in device memory",
    "staging_base": "byte address of the staging area",
    "staging_head_pages": "head pages of each of the two staging banks",
    "max_resident_tokens": "tokens of all contexts that remain in device memory after a step",
    "offload_to_storage": "1: pages are offloaded to storage, 0: to host memory",
    "max_descriptor_bytes": "longest descriptor in bytes, a multiple of a word; 0: 4096",
    "retain_fetched": "1: fetched pages stay in device memory, selected pages become the newest ones",
}
EVENTS = (("done", DONE, 1, "a program is complete"), ("fault", FAILED, 1, "the core stopped on a fault"))


def settings(ports: Mapping[str, ShapeLike]) -> tuple[Register, ...]:
    """Registers for the `cfg_` ports of the KV prediction unit, without this prefix."""
    widths = {name.removeprefix("cfg_"): Shape.cast(shape).width for name, shape in ports.items()}
    return tuple(Register(name, width, Access.RW, SETTINGS[name]) for name, width in widths.items())


def registers(settings: tuple[Register, ...] = ()) -> RegisterMap:
    """The register map; `settings` are the registers of the KV prediction unit."""
    causes = ", ".join(f"{cause.value} {cause.name}" for cause in Cause)
    sources = ", ".join(f"{unit.value} {unit.name}" for unit in ExecUnit)
    return RegisterMap(
        "vrex",
        (
            Register("version", 32, Access.RO, "version of the register map", bits=(
                ("version", 0, 16, "version of the register map"), ("word", 16, 16, "bits of a memory word"))),
            Register("control", 2, Access.PULSE, "control", bits=(
                ("start", START, 1, "start the program; no effect while busy or stopped"),
                ("clear", CLEAR, 1, "clear the fault; no effect unless stopped"))),
            Register("status", 3, Access.RO, "state", bits=(
                ("busy", 0, 1, "a program runs"),
                ("stopping", 1, 1, "a fault occurred, bursts in flight are completed"),
                ("stopped", 2, 1, "stopped on a fault until `clear`"))),
            Register("events", 2, Access.CLEAR, "pending events", bits=EVENTS),
            Register("events_enable", 2, Access.RW, "events that raise the interrupt", bits=EVENTS),
            Register("cause", 4 + SOURCE_BITS, Access.RO, "fault", bits=(
                ("cause", 0, 4, causes), ("source", 4, SOURCE_BITS, f"{sources}, {SEQUENCER} sequencer"))),
            Register("fault_address", WORD_ADDRESS_BITS, Access.RO,
                     "first word of the burst or job, or index of the command"),
            Register("program", WORD_ADDRESS_BITS, Access.RW, "first word of the program"),
            Register("commands", PROGRAM_BITS, Access.RW, "number of commands of the program, with END"),
            Register("position", PROGRAM_BITS, Access.RO, "decoded commands"),
            *(Register(name, 48, Access.RW, text) for name, text in ADDRESSES.items()),
            Register("use_shared", 1, Access.RW, "1: the commands use the clusters and page lists of core 0"),
            Register("device_words", WORD_ADDRESS_BITS + 1, Access.RW, "size of the device region in words"),
            Register("host_words", WORD_ADDRESS_BITS + 1, Access.RW, "size of the host region in words"),
            *settings,
            Register("clear_counters", 1, Access.PULSE, "resets the counters"),
            *(Register(name, 32, Access.RO, text) for name, text in COUNTERS.items()),
        ),
    )  # fmt: skip
