"""A model on a board: the accesses of a host to a core with memories, and the replies that the golden machine expects.

The host clears the memories and writes all words of the model's images that are not 0, and the registers. Then, for
each step of the model, it writes the inputs and the changed words of the program, and starts it. After the interrupt it
reads the logits and the chosen tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from compiler.checkpoint import Checkpoint
from compiler.driver import Driver, Step
from compiler.policies import ResvPolicy
from compiler.random_model import write_random_model
from compiler.runtime import Limits, Machine, compile_model
from golden import bf16
from hw.boards.core_system import ADDRESS_BITS, CoreSystem
from hw.boards.message_codes import Access
from hw.boards.protocol import Vectors
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import LIST_SETS, Command
from hw.core.register_map import DONE
from hw.core.retrieval.page_lists import ENTRY_BYTES
from hw.dre.wtu.command import KeyOrder
from sim.ports.kvpu import core_settings

CORE_CLOCK_MHZ = 5  # of a core on a board
LAYERS, VOCABULARY = 2, 48  # of the random model
LIMITS = Limits(tokens=64, step=4, resident=6)
RETRIEVAL = ResvPolicy(ratio=0.5, hamming_threshold=3)
LIMIT = 1 << 24  # cycles of a program of the model
PATTERN = 0x5A5A_0000  # of the words of the self-test, plus their address
SHORT_LIMIT = 10_000  # cycles of the program of the self-test


class Accesses:
    """Accesses of a host in order, as words of the stream `access`, and the replies to expect.

    Parameters
    ----------
    word_bytes : bytes of a memory word
    """

    def __init__(self, word_bytes: int):
        self.word_bytes = word_bytes
        self.words: list[int] = []
        self.replies: list[int] = []

    def add(self, kind: Access, address: int = 0, value: int = 0, *, reply: int | None = None) -> None:
        """Append an access; `reply` is the word that it returns, None for none."""
        if not 0 <= address < 1 << ADDRESS_BITS:
            raise ValueError(f"address must be 0 to {(1 << ADDRESS_BITS) - 1}, got {address}")
        self.words.append(value | address << 8 * self.word_bytes | kind << 8 * self.word_bytes + ADDRESS_BITS)
        if reply is not None:
            self.replies.append(reply)

    def write(self, kind: Access, address: int, content: bytes, before: bytes = b"") -> None:
        """Write the words of `content` that differ from `before`, whose missing words are 0."""
        size = self.word_bytes
        for at in range(0, len(content), size):
            word = int.from_bytes(content[at : at + size], "little")
            if word != int.from_bytes(before[at : at + size], "little"):
                self.add(kind, address + at // size, word)

    def read(self, kind: Access, address: int, expected: bytes) -> None:
        """Read words, whose content must be `expected`."""
        for at in range(0, len(expected), self.word_bytes):
            word = int.from_bytes(expected[at : at + self.word_bytes], "little")
            self.add(kind, address + at // self.word_bytes, reply=word)

    def set_up(self, driver: Driver, sizes: Mapping[str, int], **settings: int) -> None:
        """Write the regions, which are the whole memories, and other registers."""
        regions = {f"{side}_words": words for side, words in sizes.items()}
        self._registers(driver.setup(device_start=0, host_start=0, **regions, **settings))

    def run(self, driver: Driver, address: int, commands: int, limit: int) -> None:
        """Start the program at word `address`, which must end without a fault within `limit` cycles."""
        self._registers(driver.start(address, commands))
        self.add(Access.WAIT, value=limit, reply=1)
        done = 1 << DONE
        self._registers([*driver.read("events"), *driver.read("cause"), *driver.write("events", done)], (done, 0))

    def _registers(self, steps: list[Step], expected: tuple[int, ...] = ()) -> None:
        """Perform reads and writes of registers; `expected` are the values that are read."""
        values = iter(expected)
        for name, address, *value in steps:
            if name == "write":
                self.add(Access.WRITE_REGISTER, address, *value)
            else:
                self.add(Access.READ_REGISTER, address, reply=next(values))


def vectors_of(*parts: Accesses) -> Vectors:
    """Accesses one after the other, and their replies, as beats of the streams of `CoreSystem`."""
    accesses = [word for part in parts for word in part.words]
    replies = [word for part in parts for word in part.replies]
    return Vectors({}, {"access": accesses}, {"reply": replies}, {})


class CoreSession:
    """Records what the runtime does with the golden machine of `machine`, as accesses of a host.

    Create it before the first step of the session. Afterwards, `system` is the hardware that performs `vectors`.
    Raises `ValueError` for a machine with several cores.

    Attributes
    ----------
    programs : number of recorded programs
    """

    def __init__(self, machine: Machine):
        if len(machine.shares) != 1:
            raise ValueError(f"cores must be 1 on a board, got {len(machine.shares)}")
        self.machine, golden = machine, machine.core
        self.word = golden.word_bytes
        self.driver = Driver(Core.from_config(machine.config).map, self.word)
        self.programs = 0
        lists = LIST_SETS * machine.config.kv_heads * machine.config.max_pages * ENTRY_BYTES
        self._lists = -(-len(golden.device) // self.word)
        self._program = self._lists + -(-lists // self.word)
        self._code = b""  # in the memory, from word `_program` on
        self._image, self._steps = Accesses(self.word), Accesses(self.word)
        self._image.add(Access.CLEAR)
        self._image.write(Access.WRITE_DEVICE, 0, bytes(golden.device))
        self._image.write(Access.WRITE_HOST, 0, bytes(golden.host))
        golden.observers.append(self)

    def wrote(self, images: Mapping[int, bytes]) -> None:
        """Write the images before the next program."""
        for address, image in images.items():
            for at in range(0, len(image), self.word):
                word = int.from_bytes(image[at : at + self.word], "little")
                self._steps.add(Access.WRITE_DEVICE, address + at // self.word, word)

    @contextmanager
    def running(self, programs: list[list[Command]]) -> Iterator[None]:
        """Run the program of the core and read its outputs on the golden machine."""
        yield
        (program,) = programs
        code = self.driver.image(program)
        self._steps.write(Access.WRITE_DEVICE, self._program, code, self._code)
        self._code = code + self._code[len(code) :]
        self._steps.run(self.driver, self._program, len(program), LIMIT)
        decoder, get = self.machine.decoder, self.machine.core.get
        for at, words in ((decoder.logits, 2 * decoder.blocks * decoder.batch), (decoder.choice, 2 * decoder.batch)):
            self._steps.read(Access.READ_DEVICE, at, get(at, words * self.word).tobytes())
        self.programs += 1

    @property
    def sizes(self) -> dict[str, int]:
        """Words of the memories: powers of two that hold the images and the longest recorded program."""
        used = {
            "device": self._program + len(self._code) // self.word,
            "host": -(-len(self.machine.core.host) // self.word),
        }
        return {side: 1 << max(1, (words - 1).bit_length()) for side, words in used.items()}

    def vectors(self) -> Vectors:
        """All accesses and the expected replies."""
        golden = self.machine.core
        order: Any = KeyOrder.SIGNED if golden.signed else KeyOrder.PLAIN
        settings = core_settings(golden.table, order) | {"page_lists_base": self._lists * self.word}
        start = Accesses(self.word)
        start.set_up(self.driver, self.sizes, **settings)
        return vectors_of(self._image, start, self._steps)

    def system(self) -> CoreSystem:
        """A core with these memories."""
        return CoreSystem(self.machine.config, **{f"{side}_words": words for side, words in self.sizes.items()})


def random_session(config: Config, seed: int, *, frames: int = 3, answer: int = 4) -> CoreSession:
    """The recorded session of a random Llama with two layers: frames of random visual tokens, a question, an answer.

    From the third frame on, selected pages are fetched from the host memory. `frames` are at least 1; `answer` is the
    largest number of answer tokens.
    """
    rng = np.random.default_rng(seed)
    hidden = 2 * config.kv_heads * config.head_dim
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": hidden * 3 // 2,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2 * config.kv_heads,
        "num_key_value_heads": config.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": LIMITS.tokens,
    }
    with TemporaryDirectory() as folder:
        write_random_model(Path(folder), {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes}, rng)
        machine = compile_model(Checkpoint(folder), config, LIMITS, RETRIEVAL)
    session, recorded = machine.session(), CoreSession(machine)
    for _ in range(frames):
        session.features(bf16.encode(rng.standard_normal((LIMITS.step, hidden))))
    for _ in session.ask(rng.integers(VOCABULARY, size=6).tolist(), count=answer):
        pass
    return recorded


def self_test(system: CoreSystem) -> Vectors:
    """Vectors of the self-test after power-up: memories, registers, and a program of one command."""
    accesses = Accesses(system.word // 8)
    driver = Driver(system.core.map, accesses.word_bytes)
    accesses.add(Access.CLEAR)
    for side, words in system.sizes.items():
        write, read = (Access[f"{name}_{side.upper()}"] for name in ("WRITE", "READ"))
        places = sorted({1, words // 2, words - 1})
        for address in places:
            accesses.add(write, address, address + PATTERN)
        for address in [0, *places]:
            accesses.add(read, address, reply=address + PATTERN if address else 0)
    program = [Command("END")]
    accesses.write(Access.WRITE_DEVICE, 0, driver.image(program))
    accesses.set_up(driver, system.sizes)
    accesses.run(driver, 0, len(program), SHORT_LIMIT)
    return vectors_of(accesses)
