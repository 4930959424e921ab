"""A core with block memories on a board: a host reads and writes its memories and registers word by word."""

# mypy: disable-error-code="assignment,arg-type,attr-defined"

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.block_memory import BlockMemory
from hw.boards.message_codes import Access
from hw.config import Config
from hw.core.core import Core

ADDRESS_BITS = 24  # of an access: words of a memory, bytes of the registers


def access_layout(word: int) -> data.StructLayout:
    """An access: its kind, its address, and the word to write; the limit of cycles for `WAIT`."""
    return data.StructLayout({"value": word, "address": ADDRESS_BITS, "kind": 8})


class CoreSystem(wiring.Component):
    """A core, block memory as its device memory and its host memory, and a port for the host.

    ```
    access ──┬─> registers of the core ─┐
             ├─> device memory ─────────┼─> reply
             ├─> host memory ───────────┤
             └─> WAIT: interrupt ───────┘
                 core ─ AXI4 ─ device memory, host memory
    ```

    Accesses are performed one at a time, in order. Reads and `WAIT` have one reply: the word, and whether the interrupt
    came before the limit. An access to a memory takes place between bursts of the core. An
    address beyond the memory wraps. Both memories start at the address 0.

    Timing: an access takes one to four cycles if no burst of the core is in progress, `CLEAR` one cycle per word of the
    larger memory.

    Parameters
    ----------
    config : sizes of the core
    device_words, host_words : sizes of the memories in words, powers of two

    Members
    -------
    access : accesses of the host
    reply : words that were read
    """

    def __init__(self, config: Config, *, device_words: int, host_words: int):
        self.core = Core.from_config(config)
        self.word = self.core.processor.word
        self.sizes = {"device": device_words, "host": host_words}
        super().__init__(
            {
                "access": In(stream.Signature(access_layout(self.word))),
                "reply": Out(stream.Signature(self.word)),
            }
        )

    @property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules of which the core has instances."""
        return self.core.modules

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = self.core
        m.d.comb += core.barrier.released.eq(1)
        memories = {}
        for side, words in self.sizes.items():
            axi = getattr(core, side)
            sizes = {"address_bits": len(axi.araddr), "id_bits": len(axi.arid)}
            m.submodules[side] = memories[side] = BlockMemory(words=words, word=self.word, **sizes)
            wiring.connect(m, axi, memories[side].axi)
        self._accesses(m, memories)
        return m

    def _accesses(self, m: Module, memories: dict[str, BlockMemory]) -> None:
        """Perform one access at a time."""
        access, kind, registers = self.access.payload, self.access.payload.kind, self.core.registers
        waited = Signal(self.word)  # cycles of WAIT
        cleared = Signal(range(max(self.sizes.values())))  # words that CLEAR has written
        sent = Signal(2)  # address and data of the access to a register are sent
        m.d.comb += [
            registers.araddr.eq(access.address),
            registers.awaddr.eq(access.address),
            registers.wdata.eq(access.value),
            registers.wstrb.eq(-1),
            registers.bready.eq(1),
        ]
        for memory in memories.values():
            m.d.comb += [memory.direct.payload.address.eq(access.address), memory.direct.payload.data.eq(access.value)]
        with m.If(self.reply.valid & self.reply.ready):
            m.d.sync += self.reply.valid.eq(0)

        with m.FSM(name="state"):
            with m.State("ACCESS"), m.If(self.access.valid & ~self.reply.valid), m.Switch(kind):
                for side, memory in memories.items():
                    with m.Case(Access[f"WRITE_{side.upper()}"].value):
                        m.d.comb += [
                            memory.direct.valid.eq(1),
                            memory.direct.payload.write.eq(1),
                            self.access.ready.eq(memory.direct.ready),
                        ]
                    with m.Case(Access[f"READ_{side.upper()}"].value):
                        m.d.comb += memory.direct.valid.eq(1)
                        with m.If(memory.direct.ready):
                            m.next = f"READ {side}"
                with m.Case(Access.WRITE_REGISTER.value):
                    m.d.comb += [registers.awvalid.eq(~sent[0]), registers.wvalid.eq(~sent[1])]
                    m.d.sync += sent.eq(sent | Cat(registers.awready, registers.wready))
                    with m.If(registers.bvalid):
                        m.d.comb += self.access.ready.eq(1)
                        m.d.sync += sent.eq(0)
                with m.Case(Access.READ_REGISTER.value):
                    m.d.comb += registers.arvalid.eq(~sent[0])
                    m.d.sync += sent[0].eq(sent[0] | registers.arready)
                    with m.If(registers.rvalid):
                        m.d.comb += [registers.rready.eq(1), self.access.ready.eq(1)]
                        m.d.sync += [sent.eq(0), self.reply.valid.eq(1), self.reply.payload.eq(registers.rdata)]
                with m.Case(Access.WAIT.value):
                    m.d.sync += waited.eq(waited + 1)
                    with m.If(self.core.irq | (waited == access.value)):
                        m.d.comb += self.access.ready.eq(1)
                        m.d.sync += [waited.eq(0), self.reply.valid.eq(1), self.reply.payload.eq(self.core.irq)]
                with m.Case(Access.CLEAR.value):
                    for memory in memories.values():
                        m.d.comb += [
                            memory.direct.valid.eq(1),
                            memory.direct.payload.write.eq(1),
                            memory.direct.payload.address.eq(cleared),
                            memory.direct.payload.data.eq(0),
                        ]
                    with m.If(Cat(memory.direct.ready for memory in memories.values()).all()):
                        m.d.sync += cleared.eq(cleared + 1)
                        m.d.comb += self.access.ready.eq(cleared == max(self.sizes.values()) - 1)
                with m.Default():  # no access
                    m.d.comb += self.access.ready.eq(1)
            for side, memory in memories.items():
                with m.State(f"READ {side}"):
                    m.d.comb += self.access.ready.eq(1)
                    m.d.sync += [self.reply.valid.eq(1), self.reply.payload.eq(memory.read)]
                    m.next = "ACCESS"
