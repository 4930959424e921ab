"""Random commands whose fields use all their bits, and the data that the commands read."""

from collections.abc import Callable
from itertools import product

import numpy as np

from compiler.memory import page_layout
from golden import bf16
from golden.bf16 import FP32
from golden.core_interpreter import COUNT_BYTE, LENGTHS, NUMBERS, CoreInterpreter
from golden.decoder_layer import StepResult
from golden.weight_formats import FORMATS
from hw.axi.ports import BOUNDARY
from hw.core.isa import Command, Destination, SyncEvent, all_but
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.vector.command import assemble
from hw.lxe.microcode import Instruction, Pre, Source, Times
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES
from sim.bench.layer_run import LayerRun

AFTER = {event: all_but() for event in SyncEvent if event is not SyncEvent.OPERANDS}
WORK, MUCH = 48, 1500  # words or tile products of a command, and of a large command
PRES = (Pre.A, Pre.ADD, Pre.SUB, Pre.RSUB, Pre.MAX)
TIMES = (Times.ONE, Times.B, Times.SELF)
BEYOND = {"block": 0xFFF, "length": 0, "extra": 7}  # the block begins beyond the length, so the command has no work
IDLE = {  # field changes after which a command has no work
    "LOAD": ({"rows": 0, "limit": 0}, {"beats": 0, "limit": 0}, {"limit": 1, **BEYOND}, {"limit": 2, **BEYOND}),
    "MULTIPLY": ({"m_blocks": 0, "limit": 0}, {"k_blocks": 0, "limit": 0}, {"vectors": 0}, {"limit": 1, **BEYOND},
                 {"limit": 2, **BEYOND}),
    "VECTOR": ({"repeat": 0}, {"length": 0, "extra": 0}),
}  # fmt: skip


class Author:
    """Generator of commands and of the data that they read, at any address in both memories of a bench.

    counts : also COUNT and lengths that it has read, which programs without waits cannot have
    """

    def __init__(self, bench: LayerRun, *, counts: bool = True):
        self.counts = counts
        self.bench, self.rng, c = bench, bench.rng, bench.config
        memory = bench.core.processor.matrix_unit.memory
        self.n = c.dpe_inputs
        self.programs = {}
        self.machine = CoreInterpreter(
            [bench.run_on.device, bench.run_on.host],
            inputs=self.n, weight_rows=memory.weight_rows, activation_rows=memory.activation_rows,
            slots=c.dpe_accumulators,
            vector_rows=c.vpe_rows, head_words=c.head_dim // self.n, align_bits=c.align_bits, programs=self.programs,
            layout=page_layout(c), weight_bits=c.weight_bits,
        )  # fmt: skip
        self.machine.pages = [[] for _ in range(c.kv_heads)]
        self.activations, self.tiles = memory.activation_rows, memory.weight_rows // self.n
        self.counted = 0  # by the last COUNT
        self.used_pages = [set(memory.pages) for memory in self.machine.memories]

    def see(self, trace: StepResult) -> dict[int, bytes]:
        """Take over the clusters and pages of a step; returns the resident keys and values by their byte address."""
        golden = self.bench.golden
        layout = golden.table.kvmu.config.layout
        self.machine.clusters = len(golden.table.clusters.counts)
        self.machine.pages = [[(address // (2 * self.n), tokens) for address, tokens in of] for of in trace.pages]
        contents = {}
        for head, (pages, tokens) in enumerate(zip(trace.pages, trace.attended, strict=True)):
            slots = [(page, slot) for page, count in pages for slot in range(count)]
            for (page, slot), token in zip(slots, tokens, strict=True):
                for value, stored in enumerate((golden.keys, golden.values)):
                    contents[page + layout.offset(slot, value)] = stored[token][head].tobytes()
        return contents

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flip(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def any(self, least: int, bits: int) -> int:
        """A number of at least `least`; its maximum length is uniform in 1 to `bits` bits."""
        return max(least, self.number(0, (1 << self.number(1, bits)) - 1))

    def work(self) -> int:
        """The maximum number of words or tile products of a command."""
        return MUCH if self.flip(0.15) else WORK

    def allocate(self, rows: int, stride: int, words: int, side: int = 0) -> int:
        """Reserve unused pages for rows; returns the address of the first word."""
        size, used = 2 * self.n, self.used_pages[side]
        while True:
            address = self.number(0, len(self.machine.memories[side]) // size - rows * stride - words)
            ends = [((address + row * stride) * size, (address + row * stride + words) * size) for row in range(rows)]
            pages = {page for first, end in ends for page in range(first // BOUNDARY, end // BOUNDARY + 1)}
            if not pages & used:
                used |= pages
                return address

    def stride(self, rows: int, words: int) -> int:
        """Words from one row to the next, such that all rows are in memory."""
        return max(words, self.any(0, 24) % (len(self.machine.memories[0]) // (2 * self.n) // rows - words))

    def rows(self, rows: int, words: int, wide: bool = False) -> tuple[int, int]:
        """First word and stride of new data in the device memory, `words` a row."""
        stride = self.stride(rows, words)
        address = self.allocate(rows, stride, words)
        for row in range(rows):
            self.fill(address + row * stride, words, wide)
        return address, stride

    def fill(self, address: int, words: int, wide: bool = False, side: int = 0) -> None:
        values = self.rng.standard_normal(words * self.n // (1 + wide))
        data = bf16.encode(values, FP32).astype("<u4") if wide else bf16.encode(values).astype("<u2")
        self.machine.memories[side][2 * self.n * address : 2 * self.n * (address + words)] = data.tobytes()

    def length(self, elements: int) -> dict:
        """Fields of a command that encode this length."""
        size, head = self.number(0, 2 + self.counts), self.number(0, len(self.machine.pages) - 1)
        known = (0, self.machine.clusters, self.machine.past(head), self.counted)[size]
        return {"length": size, "head": head, "extra": (elements - known) % LENGTHS}

    def limit(self, count: int) -> int:
        """A limit field of which `count` remain after the length is applied."""
        return count if self.flip() else self.any(count, 16)

    # commands

    def copy(self) -> list[Command]:
        words, sides = self.number(1, WORK), self.rng.integers(0, 2, 2).tolist()
        source, target = (self.allocate(1, 0, words, side) for side in sides)
        self.fill(source, words, side=sides[0])
        return [Command("COPY", {"source": source, "target": target, "words": words, "from_host": sides[0],
                                 "to_host": sides[1]})]  # fmt: skip

    def encoded_load(self) -> list[Command]:
        """LOAD of encoded tiles: weights that are quantised, or random bits; `beats` can exceed whole tiles."""
        form = FORMATS[str(self.rng.choice(list(FORMATS)))]
        activations, tiled = int(self.flip()), int(self.flip())
        capacity, n = self.activations if activations else self.tiles * self.n, self.n
        while True:
            rows, tiles = self.any(1, 4), self.any(1, 3)
            beats = tiles * n
            if rows * beats > min(self.work(), capacity):
                continue
            to, step = self.number(0, capacity - 1), self.number(0, 2 * beats)
            at = [to + r // n * n * beats + n * b + r % n if tiled else to + r * step + b
                  for r in range(rows) for b in range(beats)]  # fmt: skip
            if max(at) < capacity:
                break
        words = tiles * form.tile_words(n)
        source, stride = self.rows(rows, words)
        for row in range(rows):
            image = self.rng.integers(0, 256, 2 * n * words).astype(np.uint8)
            if self.flip(0.8):
                weights = bf16.encode(self.rng.standard_normal((n, beats)))
                image = form.tiles(form.quantise(weights, form.largest_group or n), n)
            first = 2 * n * (source + row * stride)
            self.machine.memories[0][first : first + 2 * n * words] = image.tobytes()
        fields = {"source": source, "stride": stride, "rows": rows, "beats": beats + self.number(0, n - 1),
                  "target": to, "step": step, "activations": activations, "tiled": tiled, "limit": 3,
                  "block": self.any(0, 14) << 2 | form.number}  # fmt: skip
        return [Command("LOAD", fields)]

    def load(self) -> list[Command]:
        if self.machine.formats and self.flip():
            return self.encoded_load()
        activations, tiled, vary = int(self.flip()), int(self.flip()), self.number(0, 2)
        capacity, work = self.activations if activations else self.tiles * self.n, self.work()
        while True:
            rows, beats = (int(v) for v in self.rng.permutation([self.any(1, 9), self.any(1, 3)]))
            if rows * beats > min(work, capacity):
                continue
            to, step = self.number(0, capacity - 1), self.number(0, 2 * beats) * (1 - 2 * self.flip(0.3)) % NUMBERS
            at = [to + r // self.n * self.n * beats + self.n * b + r % self.n if tiled else to + r * step + b
                  for r in range(rows) for b in range(beats)]  # fmt: skip
            if max(entry % NUMBERS for entry in at) < capacity:
                break
        source, stride = self.rows(rows, beats)
        fields = {"source": source, "stride": stride, "rows": rows, "beats": beats, "target": to, "step": step,
                  "activations": activations, "tiled": tiled, "limit": vary}  # fmt: skip
        if vary == 1:
            block = self.any(0, 16)
            fields |= {"rows": self.limit(rows), "block": block, **self.length(block * self.n + rows)}
        if vary == 2:
            block = self.any(0, 16)
            length = (block + beats) * self.n - self.number(0, self.n - 1)
            fields |= {"beats": self.limit(beats), "block": block, **self.length(length)}
        return [Command("LOAD", fields)]

    def gather(self) -> list[Command]:
        """GATHER commands that together read all tokens of one head, or the first ones; the first command restarts."""
        head, values = self.number(0, len(self.machine.pages) - 1), int(self.flip())
        own, tokens = self.machine.head_words, self.number(1, 3)
        first, stride = self.rows(tokens, own)
        word = self.number(0, own - 1) if self.flip() else 0
        words = self.number(1, own - word) if word or self.flip() else 0
        commands, blocks, position = [], self.number(1, 3), 0
        total = self.machine.past(head) + tokens
        while position < total:
            skip = int(self.flip(0.4)) * self.number(1, 4)
            position += skip * self.n
            rows = max(0, min(total - position, blocks * self.n))
            used = -(-rows // self.n) * self.n * (words or own)
            to = self.number(0, self.tiles * self.n - used)
            fields = {"head": head, "values": values, "restart": int(not commands), "blocks": blocks, "target": to,
                      "step_word": self.any(0, 32) if commands else first, "stride": stride, "tokens": tokens,
                      "skip": skip, "word": word, "words": words}  # fmt: skip
            commands.append(Command("GATHER", fields))
            position += blocks * self.n
        if self.flip(0.3):  # the rest of the page list is not used
            return commands[: self.number(1, len(commands))]
        return commands

    def count(self) -> list[Command]:
        """COUNT of a random word."""
        size = 2 * self.n
        word = self.allocate(1, 0, 1)
        content = self.rng.bytes(size)
        self.machine.memories[0][size * word : size * (word + 1)] = content
        first = COUNT_BYTE % size
        self.counted = int.from_bytes(content[first : first + 3], "little")
        return [Command("COUNT", {"header": word})]

    def multiply(self) -> list[Command]:
        slots, work = len(self.machine.sums), self.work()
        while True:
            m, k, t = (int(v) for v in self.rng.permutation([self.any(1, 11), self.any(1, 3), 1]))
            if m * k * t > work or t > 255:
                continue
            spread = int(self.flip())
            weights, row = self.number(0, self.tiles - 1), self.number(0, self.activations - 1)
            m_stride, k_stride, x_stride = (self.number(-3, 3) % NUMBERS for _ in range(3))
            tiles = [weights + a * m_stride + b * k_stride for a, b in product(range(m), range(k))]
            rows = [(row + a * x_stride) % NUMBERS + b for a, b in product(range(t), range(k))]
            fits = (t <= slots or k == 1) and (not spread or m * t <= slots or k == 1)
            inside = max(p % NUMBERS for p in tiles) < self.tiles and max(rows) < self.activations
            if inside and fits:
                break
        wide, vary = int(self.flip()), self.number(0, 2)
        stride = self.stride(t, m * (1 + wide))
        fields = {"weights": weights, "m_stride": m_stride, "k_stride": k_stride, "m_blocks": m, "k_blocks": k,
                  "activations": row, "x_stride": x_stride, "vectors": t, "first": 1, "last": 1, "spread": spread,
                  "out": self.allocate(t, stride, 2 * m), "stride": stride, "wide": wide, "limit": vary}  # fmt: skip
        if vary == 1:
            block = self.any(0, 16)
            length = (block + m) * self.n - self.number(0, self.n - 1)
            return [Command("MULTIPLY", {**fields, "m_blocks": self.limit(m), "block": block, **self.length(length)})]
        length = k * self.n - self.number(0, self.n - 1)
        if (spread and m * t > slots) or (not spread and m > 1) or k == 1 or t > slots:
            limits = {"k_blocks": self.limit(k), **self.length(length)} if vary else {}
            return [Command("MULTIPLY", {**fields, **limits})]
        # two commands: the first one begins the sums, the second one completes them
        half = self.number(1, k - 1)
        if vary:
            parts = [{"k_blocks": half}, {"k_blocks": max(half, k - half), "block": half}]
            if parts[1]["k_blocks"] > k - half:
                parts[1]["k_blocks"] = self.limit(k - half)
            ends = [{**part, **self.length(length), "first": 0, "last": 0} for part in parts]
        else:
            ends = [{"k_blocks": half, "last": 0}, {"k_blocks": k - half, "first": 0}]
        shift = {"weights": (weights + half * k_stride) % NUMBERS, "activations": row + half}
        return [Command("MULTIPLY", {**fields, **ends[0]}), Command("MULTIPLY", {**fields, **ends[1], **shift})]

    def vector(self) -> list[Command]:
        varies, two, again, out_wide, a_wide, b_wide = (self.flip() for _ in range(6))
        rows, work, group = self.bench.config.vpe_rows, self.work(), self.any(1, 8) if varies and self.flip() else 0
        while True:
            repeat, elements, stored = self.any(1, 9), self.any(1, 12), two or again or self.flip()
            grown = elements + ((repeat - 1) // group if group else 0)
            beats = -(-grown // self.n)
            if repeat * beats <= work and (not stored or beats <= rows) and grown - elements < 256:
                break
        elements, grown = (elements, grown) if varies else (self.any(1, 16), 0)
        silent = self.flip(0.1)
        code, count = self.program(varies, two + again, stored, beats, {"to_stream": not silent, "round": not out_wide})
        a, a_stride = self.rows(repeat, beats * (1 + a_wide), a_wide)
        pad = min(255, max(0, grown - elements) + self.any(0, 8))
        width = (-(-(elements + pad) // self.n) if varies else beats) * (1 + out_wide)
        out_stride = self.stride(repeat, width)
        fields = {
            "code": code, "instructions": count, "repeat": repeat, "a": a, "a_stride": a_stride, "a_wide": int(a_wide),
            "out": self.allocate(repeat, out_stride, width), "out_stride": out_stride, "out_wide": int(out_wide),
            "a_again": int(again), "group": group, "pad": pad, **self.length(elements),
        }  # fmt: skip
        fields["destination"] = Destination.NONE if silent else Destination.MEMORY
        if self.flip(0.3):
            fields["fit"] = self.number(0, 2)
        if not varies:
            fields |= {"a_beats": beats, "out_beats": beats}
        if two:
            b, b_stride = self.rows(repeat, beats * (1 + b_wide), b_wide)
            fields |= {"b": b, "b_stride": b_stride, "b_wide": int(b_wide), "b_used": 1}
            fields |= {} if varies else {"b_beats": beats}
        return [Command("VECTOR", fields)]

    def program(self, varies: bool, further: int, stored: bool, beats: int, output: dict) -> tuple[int, int]:
        """Address and number of instructions of a new vector program with `further` input rows after the first one."""
        row, immediate = self.number(0, 15), int(bf16.encode(self.rng.standard_normal(1), FP32)[0])
        steps = {"pre": PRES[self.number(0, len(PRES) - 1)], "times": TIMES[self.number(0, len(TIMES) - 1)],
                 "immediate": immediate, **output}  # fmt: skip
        keep = {"to_memory": True, "to_row": row}
        if further:
            last = {**steps, "b": Source.MEMORY, "b_row": row, "wait": True}
            ops = [*[keep] * further, last]
        else:
            ops = [keep, {**steps, "a": Source.MEMORY, "a_row": row, "wait": True}] if stored else [steps]

        def build(beats, tail):
            return [Instruction(**op, beats=beats, tail=tail) for op in ops]

        return self.code(build, beats, varies), len(ops)

    def code(self, build: Callable[[int, int], list[Instruction]], beats: int, varies: bool) -> int:
        """Address of the vector program `build(beats, tail)`; `varies`: the command sets the number of beats."""
        image = assemble(build(beats, 0), self.bench.config.vpe_rows, varies=varies)
        words = len(image) // (2 * self.n)
        address = self.allocate(1, 0, words)
        self.machine.memories[0][2 * self.n * address : 2 * self.n * (address + words)] = image
        self.programs[address] = build if varies else lambda *_: build(beats, 0)
        return address

    def operands(self) -> list[Command]:
        """Fill the operand memory."""
        commands = []
        for activations, rows in enumerate((self.tiles * self.n, self.activations)):
            source, stride = self.rows(rows, 1)
            fields = {"source": source, "stride": stride, "rows": rows, "beats": 1, "step": 1}
            commands.append(Command("LOAD", {**fields, "activations": activations}))
        return commands

    def write(self, count: int) -> list[Command]:
        """Commands that fill the operand memory, then `count` times commands of a random kind, in sequence."""
        commands = self.operands()
        kinds = [self.copy, self.load, self.multiply, self.vector, self.gather, *[self.count] * self.counts]
        for _ in range(count):
            commands += kinds[self.number(0, len(kinds) - 1)]()
            if (changes := IDLE.get(commands[-1].name)) and self.flip(0.2):
                change = changes[self.number(0, len(changes) - 1)]
                commands.append(Command(commands[-1].name, {**commands[-1].fields, **change}))
        return [Command(command.name, command.fields, AFTER) for command in commands]

    def end(self) -> list[Command]:
        """A VECTOR that writes a row, and END, which does not wait for the rows of a VECTOR without output."""
        (last,) = self.vector()
        while last.fields["destination"] == Destination.NONE or "fit" in last.fields or "a_beats" not in last.fields:
            (last,) = self.vector()
        return [Command(last.name, last.fields, AFTER), Command("END")]

    def compare(self, record: AxiRecord) -> None:
        """Assert that the last requests of each engine and all written words equal those of the interpreter."""
        machine, run, size = self.machine, self.bench.run_on, 2 * self.n
        requested = {
            (side, write, n): [] for side in BASES for write in (False, True) for n in range(len(READ_ENGINES))
        }
        for side, base in run.bases.items():
            for write, identity, address, words in filter(None, record.traffic[side]["requests"]):  # None: a reset
                requested[side, write, identity] += range((address - base) // size, (address - base) // size + words)
        for write, moved, engines in ((False, machine.reads, READ_ENGINES), (True, machine.writes, WRITE_ENGINES)):
            for unit, jobs in moved.items():
                for memory, side in enumerate(BASES):
                    addresses = requested[side, write, 0 if memory else list(engines).index(unit)]
                    wanted_addresses = [start + n for at, start, words in jobs if at == memory for n in range(words)]
                    assert addresses[len(addresses) - len(wanted_addresses) :] == wanted_addresses, (unit, side, write)
        for jobs in machine.writes.values():
            for memory, start, words in jobs:
                where = slice(start * size, (start + words) * size)
                got = record.images[list(BASES)[memory]][where]
                assert got == machine.memories[memory][where], (memory, start, words)
