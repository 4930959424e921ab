"""Runtime of the machine: memory plan of a model, and sessions that take frames and questions and give tokens.

machine = compile_model(Checkpoint("model"), Config.preset("paper").replace(kv_heads=2), Limits(tokens=4096))
session = machine.session()
session.frame(picture)
print(machine.tokenizer.decode(list(session.ask("What happens?", count=32))))
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from compiler import context_file
from compiler.builder import Share
from compiler.checkpoint import Checkpoint
from compiler.context_file import ContextAddress
from compiler.golden_machine import GoldenMachine, Retrieved
from compiler.images import ImageProcessor
from compiler.language_model import LanguageModelCompiler, StreamTokens, Words, chosen_token
from compiler.layer import Context
from compiler.limits import Limits
from compiler.machine.interpreter import FastInterpreter
from compiler.memory import Region, RegionFullError
from compiler.mosaic_host import MosaicHost
from compiler.policies import CodecSightPolicy, Policy, ResvPolicy
from compiler.policies.base import LayerWidths
from compiler.positions import Positions, joined, of_pairs
from compiler.sampling import Sampler, Sampling
from compiler.state_space import state_words
from compiler.store_plan import plan_store
from compiler.tokenizer import TextTokenizer
from compiler.vision import VisionCompiler
from compiler.vision_shapes import picture_size, vision_shape
from compiler.window_layer import plan_windows
from golden.bf16 import BF16_ONE, FP32, decode
from golden.core_interpreter import CoreInterpreter
from golden.decoder_layer import RESV_POLICY, angles, column_mask, pair_order
from golden.kvmu import KvmuConfig
from golden.kvpu import Kvpu
from golden.store import Store, create_context, create_store, delete_context, share_pages, store_bytes
from golden.store.layout import BACKING_UNIT, TABLE_UNIT
from golden.store.lists import free_all_frames
from golden.weight_formats import FORMATS
from hw.config import Config
from hw.core.isa import MAX_CORES, MAX_STEP
from util import checks
from util.progress import Progress, no_progress

DEFAULT_TOKENS, DEFAULT_STEP = 2048, 64
MAX_WORDS = 1 << 32  # of a device memory
BF16_WEIGHTS = "bf16"
WEIGHTS = (BF16_WEIGHTS, *FORMATS)  # formats of the stored weights of the projections
Placement = tuple[np.ndarray, Positions]  # positions of the tokens of a step, and those after it


class Machine:
    """A model in the memory of one or more cores.

    Attributes
    ----------
    shares : of the cores, which work on each step together
    decoder : the compiled text decoder ; core : the golden machine
    vision, images : the compiled vision tower and the preparation of its pictures; None without a tower
    step : tokens of the largest step
    windows : memory of the windows of all streams; None for a policy without windows
    plan : sizes of the store
    features_word : word address of a buffer for `step` hidden states that do not come from the embedding
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Config,
        limits: Limits,
        policy: Policy,
        interpreter: type[CoreInterpreter],
        progress: Progress,
        cores: int,
        weights: str = BF16_WEIGHTS,
    ):
        form = None if weights == BF16_WEIGHTS else FORMATS[checks.one_of("weights", weights, WEIGHTS)]
        self.shares = [Share(k, checks.integer("cores", cores, 1, MAX_CORES)) for k in range(cores)]
        text = checkpoint.spec.text
        limits = replace(limits, tokens=limits.tokens or min(DEFAULT_TOKENS, text.max_positions))
        self.config, self.limits, self.policy, self.spec = config, limits, policy, checkpoint.spec
        if policy.table(config).partitions and limits.streams != 1:
            raise ValueError(f"streams must be 1 for policy {policy.name}, got {limits.streams}")
        if limits.tokens > text.max_positions:
            raise ValueError(f"tokens must be at most {text.max_positions} positions of the model, got {limits.tokens}")
        vision, projector = checkpoint.spec.vision, checkpoint.spec.projector
        shape, self.images = None, None
        if vision is not None:
            size = picture_size(vision, limits.height, limits.width)
            shape = vision_shape(config, vision, projector, size, limits.pooled)
            self.images = ImageProcessor.of_checkpoint(checkpoint.path, vision, size)
        for name in ("height", "width", "pooled"):
            if vision is None and (value := getattr(limits, name)):
                raise ValueError(f"{name} must be 0 for a model without a vision tower, got {value}")
        frame = shape.output_tokens * policy.frames_per_step if shape else 0
        together = min(limits.batch, max(1, MAX_STEP // frame)) if frame else 0  # frames of one step
        self.step = limits.step or max(frame * together, min(DEFAULT_STEP, config.page_frames // 2))
        step_name = "step" if limits.step else "tokens of a frame" if together < 2 else f"tokens of {together} frames"
        if self.step < limits.batch:
            raise ValueError(f"step must be at least batch = {limits.batch}, got {self.step}")
        if self.step < frame:
            of = "a frame" if policy.frames_per_step == 1 else f"{policy.frames_per_step} frames"
            raise ValueError(f"step must be at least the {frame} tokens of {of}, got {self.step}")
        if limits.shared:
            _check_shared(limits, config, policy)
        self.plan = plan = plan_store(
            config, policy, limits.streams * text.layers, tokens=limits.tokens, step=self.step, pages=limits.pages,
            resident=limits.resident, saved=(limits.streams - 1) * text.layers * limits.shared // config.page_tokens,
            batch=limits.batch, step_name=step_name,
        )  # fmt: skip
        word, page, own = 2 * config.dpe_inputs, plan.page_bytes, plan.context
        region = Region(limits.memory // word if limits.memory else MAX_WORDS)
        store_size = store_bytes(plan.store, [own] * plan.contexts)
        backing_bytes = (plan.pages * page + BACKING_UNIT) // BACKING_UNIT * BACKING_UNIT  # of a context
        try:
            store = _allocate(region, store_size, BACKING_UNIT, word)
            page_frames = _allocate(region, plan.page_frames * page, TABLE_UNIT, word)
            staging = _allocate(region, 2 * plan.staged * page // config.kv_heads, TABLE_UNIT, word)
            state = np.zeros(store_size, np.uint8)
            tables = create_store(state, store, plan.store, origin=store)
            self.addresses = [
                ContextAddress(n, store + plan.store.nbytes + n * own.nbytes(plan.store), n * backing_bytes, sizes=own)
                for n in range(plan.contexts)
            ]
            for at in self.addresses:
                create_context(tables, at.number, own, at.base, host_base=at.host_base)
            if limits.batch > 1 or (policy.table(config).partitions and policy.prefetch == "next_layer"):
                free_all_frames(tables)  # the order in which frames are used again matters, see `plan_store`
            widths = LayerWidths(text.hidden, text.q_heads, text.head_dim)
            branch = policy.branch(config, widths)
            self.state_words = state_words(branch.shape) if branch else 0  # of a context
            states = region.allocate(plan.contexts * self.state_words)
            mask_words = text.q_heads * config.head_dim // config.dpe_inputs if policy.table(config).partial else 0
            masks = region.allocate(plan.contexts * mask_words)
            self.contexts = [
                Context(
                    n, tables.count_byte(n) // word, int(header["mean_keys_base"]) * TABLE_UNIT // word,
                    states + n * self.state_words, masks + n * mask_words,
                )
                for n, header in enumerate(tables.contexts)
            ]  # fmt: skip
            self.decoder = LanguageModelCompiler(
                config, text, region, self.contexts[: text.layers], tokens=self.step,
                keys=-(-(plan.past + self.step) // config.dpe_inputs) * config.dpe_inputs, policy=policy, form=form,
                cores=cores, batch=limits.batch,
            )  # fmt: skip
            self.features_word = region.allocate(self.step * self.decoder.words)
            self.vision = None
            if shape:
                together = min(limits.batch, self.step // shape.output_tokens)  # frames of a step of several sessions
                frames = max(policy.frames_per_step, together)
                self.vision = VisionCompiler(config, shape, region, frames=frames, cores=cores, masks=policy.windows)
            self.windows = None
            if isinstance(policy, CodecSightPolicy):
                self.windows = plan_windows(
                    region, self.decoder.layers, streams=limits.streams, slots=limits.tokens, frames=policy.window,
                    frame_words=frame * self.decoder.words,
                )  # fmt: skip
        except RegionFullError:
            nbytes = limits.memory or MAX_WORDS * word
            raise ValueError(f"memory must hold the model and its contexts, got {nbytes} bytes") from None
        device = bytearray(region.next * word)
        device[store : store + store_size] = state.tobytes()
        selection = policy.selection()
        table = Kvpu(
            policy.clustering(config),
            KvmuConfig(
                config.kv_heads,
                config.head_dim,
                config.page_tokens,
                page_frames_base=page_frames,
                staging_base=staging,
                staging_head_pages=plan.staged,
                max_resident_tokens=plan.resident,
                max_clusters=config.max_clusters,
                max_pages=config.max_pages,
                page_frames=config.page_frames,
                lanes=config.dpe_inputs,
                kv_bits=config.kv_bits,
            ),
            np.frombuffer(device, np.uint8)[store : store + store_size],
            store,
            selection.wtu,
            selection.target,
            retain=plan.retains,
            origin=store,
        )
        vectors = self.decoder.vectors
        instructions, varying = dict(vectors.instructions), set(vectors.varying)
        if self.vision is not None:
            instructions |= self.vision.vectors.instructions
            varying |= self.vision.vectors.varying
        host = bytearray(plan.contexts * backing_bytes)
        self.core = GoldenMachine(
            config, device, host, table, instructions, varying, interpreter, cores, selection.signed
        )
        for number, images in enumerate(self.decoder.images(checkpoint)):
            progress("weights", number, text.layers + 3 - text.tied_embeddings)
            self.core.put(images)
        if self.vision is not None:
            self.core.put(self.vision.images({name: checkpoint.load(name) for name in self.vision.weights}))
        self._free = list(range(limits.streams))
        self._counted = self._by_host()  # after the last step
        self._fingerprint, self._folder = checkpoint.fingerprint(), checkpoint.path
        use: tuple[object, ...] = () if (table_use := policy.table(config)) == RESV_POLICY else (table_use,)
        if branch is not None:
            use = (*use, policy)
        if config.kv_bits != 16:
            use = (*use, config.kv_bits)
        if form is not None:
            use = (*use, form.name)
        # Contexts of another use of the tables, or of another branch, cannot continue. Saved files contain this number:
        # another name of a class or field of a policy makes them unreadable.
        for each in use:
            self._fingerprint = zlib.crc32(repr(each).encode(), self._fingerprint) or 1

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of the checkpoint. Raises ValueError if it has none."""
        return TextTokenizer(self._folder)

    @property
    def memories(self) -> context_file.Machine:
        """The memories as `compiler.context_file` takes them."""
        kvmu, host = self.core.table.kvmu, np.frombuffer(self.core.host, np.uint8)
        store = Store(np.frombuffer(self.core.device, np.uint8), kvmu.base)
        frames = kvmu.config.page_frames_base
        encoded = kvmu.config.layout if kvmu.config.layout.is_encoded else None
        return context_file.Machine(store, frames, self.config.kv_heads, host, host, self._fingerprint, encoded)

    def session(self, path: Path | str | None = None, kind: type[Session] | None = None) -> Session:
        """A new session on a free stream, or with `path` the session that `Session.save` wrote.

        `kind` : class of the session if the policy has one of its own (`compiler.window_session.WindowSession`)
        A file that cannot be resumed raises an error, and the stream stays free.
        """
        if self.limits.shared and len(self._free) < self.limits.streams:
            raise ValueError(f"sessions that share {self.limits.shared} tokens must be forks of the first one")
        return self.new_session(path, kind)

    def new_session(self, path: Path | str | None = None, kind: type[Session] | None = None) -> Session:
        """As `session`, also on a machine whose sessions share tokens: the caller shares them (`Session.fork`)."""
        if not self._free:
            raise ValueError(f"sessions must be at most streams = {self.limits.streams}")
        if self.windows is not None and kind is None:
            raise ValueError(f"kind must be WindowSession for policy {self.policy.name}, got None")
        session = (kind or Session)(self, self._free[0])
        if path is not None:
            session.resume(path)
        self._free.pop(0)
        return session

    def _by_host(self) -> tuple[int, int, int]:
        return self.core.written, self.core.read, self.core.runs

    def count_host(self) -> tuple[int, int, int]:
        """Bytes that the host has written and read since the last call, and runs of the cores."""
        before, self._counted = self._counted, self._by_host()
        written, read, runs = (now - then for now, then in zip(self._counted, before, strict=True))
        return written, read, runs

    def see(self, frames: Sequence[Sequence[np.ndarray]]) -> tuple[list[list[list[Words]]], int]:
        """Frames through the vision tower: the words of the visual tokens of each frame, and the number of commands.

        `frames` : pictures of each frame, as of `Session.frame`
        """
        vision, images = self.vision, self.images
        assert vision is not None and images is not None
        shape, words = vision.shape, vision.out_words
        rows = np.concatenate([images.patches(*pictures)[shape.order] for pictures in frames])
        padded = np.zeros((len(rows), vision.patch_words * self.config.dpe_inputs), "<u2")
        padded[:, : rows.shape[1]] = rows
        self.core.put({vision.patches: padded.tobytes()})
        programs = [vision.program(len(frames), share) for share in self.shares]
        self.core.run(*programs)
        order = np.argsort(shape.output_order).tolist()
        firsts = [vision.out + number * shape.output_tokens * words for number in range(len(frames))]
        return [[[(first + n * words, words)] for n in order] for first in firsts], sum(map(len, programs))

    def shares_pages(self, contexts: Sequence[Context]) -> bool:
        """Whether contexts share pages with others."""
        store = self.memories.store
        return any(store.context(context.number).pages["references"].any() for context in contexts)

    def release(self, stream: int) -> None:
        """Make a stream free again; its contexts are empty."""
        self._free.append(stream)

    @contextmanager
    def change_store(self) -> Iterator[Store]:
        """The store, to be changed between steps. The changed words are written to the device memory at the end."""
        store, word = self.memories.store, self.core.word_bytes
        start, size = store.base, store_bytes(self.plan.store, [self.plan.context] * self.plan.contexts)
        image = np.frombuffer(self.core.device, np.uint8)[start : start + size].reshape(-1, word)
        before = image.copy()
        yield store
        changed = np.flatnonzero((image != before).any(axis=1))
        runs = np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else []
        self.core.put({start // word + int(run[0]): image[run[0] : run[-1] + 1].tobytes() for run in runs})


@dataclass
class Step:
    """A step of a session: its tokens, commands, and what its layers retrieved.

    sessions : that the step served; commands, bytes and round trips are those of all of them
    input_bytes : that the host wrote to device memory for it: programs, angles, pictures, decisions
    output_bytes : that the host read from device memory: logits and choice, and what it decides from
    round_trips : runs of the cores, after each of which the host acts
    """

    tokens: int
    commands: int
    retrieved: Retrieved
    input_bytes: int
    output_bytes: int
    round_trips: int
    sessions: int = 1


class Session:
    """One stream: hidden states and token IDs go in, tokens come out.

    Attributes
    ----------
    position : tokens so far ; positions : of RoPE, which differ from it after pictures of a model with M-RoPE
    steps : all steps so far ; logits : of the last answered step, FP32 bit patterns
    """

    def __init__(self, machine: Machine, stream: int):
        self.machine, self.position, self.positions = machine, 0, Positions()
        self.stream, self.closed = stream, False
        layers = machine.spec.text.layers
        self.contexts = machine.contexts[stream * layers : (stream + 1) * layers]
        self.steps: list[Step] = []
        self.logits = np.zeros(0, np.uint32)
        self.frequencies = machine.spec.text.rope.frequencies()
        self.frames = 0  # so far
        partitions = machine.policy.table(machine.config).partitions
        self.partial = machine.policy.table(machine.config).partial  # partial scores, whose columns the host chooses
        self.host = MosaicHost(self) if partitions else None  # it decides between the programs of a step

    def require_open(self) -> None:
        """Raise `ValueError` if the session is closed: another session can have its stream."""
        if self.closed:
            raise ValueError("session must be open, got a closed one")

    def fork(self, tokens: int = 0) -> Session:
        """A new session on a free stream that begins with the first tokens of this one, and shares their pages.

        `tokens` : number of these tokens, in complete pages; 0: all tokens of this session. Pages of several sessions
        are in device memory once. They become free when the last of these sessions is closed.

        Raises ValueError if the policy does not keep these tokens in the first pages of one cluster, or if pages can
        leave device memory.
        """
        self.require_open()
        machine, plan, tokens = self.machine, self.machine.plan, tokens or self.position
        config, policy = machine.config, machine.policy
        table, layers = policy.table(config), machine.spec.text.layers
        if not table.keeps_order:
            raise ValueError(f"policy of a session to fork must be full, window or hybrid, got {policy.name}")
        if not plan.keeps_all:
            raise ValueError(f"resident must be 0 to fork a session, got {machine.limits.resident}")
        if layers < 2:  # the engine reads a changed store when it opens another context
            raise ValueError(f"layers must be at least 2 to fork a session, got {layers}")
        size = config.page_tokens
        most = self.position if table.kept_pages is None else min(self.position, table.kept_pages[0] * size)
        if not 1 <= tokens <= most or tokens % size:
            raise ValueError(f"tokens must be a multiple of page_tokens = {size}, at most {most}, got {tokens}")
        whole = tokens == self.position
        if not whole and (machine.state_words or machine.spec.text.rope.sections is not None):
            raise ValueError(
                f"tokens must be all {self.position} of a session with a branch or with M-RoPE, got {tokens}"
            )
        if tokens < machine.limits.shared:
            raise ValueError(f"tokens must be at least shared = {machine.limits.shared}, got {tokens}")
        other = machine.new_session(kind=type(self))
        with machine.change_store() as store:
            for own, new in zip(self.contexts, other.contexts, strict=True):
                share_pages(store, own.number, new.number, tokens // size)
        for own, new in zip(self.contexts, other.contexts, strict=True):
            if machine.state_words:
                state = machine.core.get(own.state_word, machine.state_words * machine.core.word_bytes)
                machine.core.put({new.state_word: state.tobytes()})
        other.position, other.positions = tokens, self.positions if whole else Positions(tokens)
        other.frames = self.frames if whole else 0
        return other

    def close(self) -> None:
        """Delete the contexts of the session: its stream becomes free, and pages that no other session shares."""
        self.require_open()
        machine, layers = self.machine, self.machine.spec.text.layers
        contexts = machine.contexts[self.stream * layers : (self.stream + 1) * layers]
        with machine.change_store() as store:
            for context in contexts:
                at = machine.addresses[context.number]
                delete_context(store, context.number)
                create_context(store, context.number, machine.plan.context, at.base, host_base=at.host_base)
        for context in contexts if machine.state_words else ():
            machine.core.put({context.state_word: bytes(machine.state_words * machine.core.word_bytes)})
        self.closed = True
        machine.release(self.stream)

    def save(self, path: Path | str) -> None:
        """Write the contexts of the session to a file; `Machine.session` resumes them, also on another machine."""
        self._check_file()
        if self.machine.state_words:
            raise ValueError(f"policy of a saved session must have no branch, got {self.machine.policy.name}")
        if self.machine.shares_pages(self.contexts):
            raise ValueError("pages of a saved session must not be shared with another session")
        numbers = [context.number for context in self.contexts]
        context_file.export_stream(self.machine.memories, numbers, path, self.positions)

    def resume(self, path: Path | str) -> None:
        """Replace the contexts of an empty session by those of a file."""
        self._check_file()
        if self.position:
            raise ValueError(f"position of a session must be 0 before it resumes a file, got {self.position}")
        memories = self.machine.memories
        addresses = [self.machine.addresses[context.number] for context in self.contexts]
        sizes = addresses[0].sizes
        assert sizes is not None
        for at in addresses:
            delete_context(memories.store, at.number)
        try:
            # page frames and undo log suffice if no more tokens are resident than after a step
            plan, used = self.machine.plan, int(memories.store.header["resident_tokens"])
            resident = None if plan.keeps_all else max(0, plan.resident - used)
            positions = context_file.import_stream(memories, path, addresses, resident)
            tokens = int(memories.store.context(addresses[0].number).header["tokens"])
            pruned = self.machine.decoder.layers[0].prunes  # then positions are more than tokens
            if self.machine.spec.text.rope.sections is None and positions.next != tokens and not pruned:
                for at in addresses:
                    delete_context(memories.store, at.number)
                raise ValueError(f"{path}: position must be {tokens}, the tokens of the stream, got {positions.next}")
        except (ValueError, OSError):
            for at in addresses:
                create_context(memories.store, at.number, sizes, at.base, host_base=at.host_base)
            raise
        plain = self.machine.spec.text.rope.sections is None
        self.position, self.positions = positions.next if plain else tokens, positions
        if self.machine.decoder.layers[0].table.by_frames:
            self.frames = int(memories.store.context(addresses[0].number).header["clusters"]) - 1

    def frame(self, *pictures: np.ndarray, seconds: float | None = None) -> None:
        """A frame through the vision tower and the layers. It is one step.

        `pictures` : uint8 (height, width, 3) each, as many as the tower has in a patch, or one that is repeated
        `seconds` : time of a frame of a video, for models that have tokens_per_second; None: a picture alone
        """
        self.frame_group([pictures], None if seconds is None else [seconds])

    def frame_group(self, frames: Sequence[Sequence[np.ndarray]], seconds: Sequence[float] | None = None) -> None:
        """A group of frames through the vision tower and the layers. They are one step.

        `frames` : pictures of each frame, as of `frame`; at most `frames_per_step` of the policy
        `seconds` : time of each frame of a video, for models that have tokens_per_second; None: pictures alone
        """
        vision, most = self.machine.vision, self.machine.policy.frames_per_step
        if vision is None:
            raise ValueError(f"model of family {self.machine.spec.family} has no vision tower, got a frame")
        if not 1 <= len(frames) <= most:
            raise ValueError(f"frames must be 1 to {most} for one step, got {len(frames)}")
        if seconds is not None and len(seconds) != len(frames):
            raise ValueError(f"seconds must be one for each of {len(frames)} frames, got {len(seconds)}")
        positions, after = list[np.ndarray](), self.positions
        for number in range(len(frames)):
            own, after = self.place_frame(None if seconds is None else seconds[number], after)
            positions.append(own)
        placed = np.concatenate(positions), after
        self.check(len(placed[0]), placed, frame=True)
        seen, commands = self.machine.see(frames)
        self._step(list(chain.from_iterable(seen)), placed, answer=False, frame=True, more=commands)

    def place_frame(self, seconds: float | None, before: Positions) -> Placement:
        """Positions of the tokens of a frame that follow the positions `before`, and those after them."""
        assert self.machine.vision is not None
        shape = self.machine.vision.shape
        return self._visual(shape.output_tokens, shape.output_grid, seconds, before)

    def features(self, rows: np.ndarray, grid: tuple[int, int] | None = None, seconds: float | None = None) -> None:
        """Visual tokens: hidden states (T, hidden), BF16 bit patterns. They are one step.

        `grid` : rows and columns of the tokens, for models with M-RoPE; None: positions of text
        `seconds` : as of `frame`
        """
        decoder, step = self.machine.decoder, self.machine.step
        rows = np.asarray(rows, np.uint16)
        if rows.ndim != 2 or rows.shape[1] != self.machine.spec.text.hidden:
            raise ValueError(f"rows must have shape (T, {self.machine.spec.text.hidden}), got {rows.shape}")
        if not 1 <= len(rows) <= step:
            raise ValueError(f"rows must be 1 to {step}, got {len(rows)}")
        placed = self._visual(len(rows), grid, seconds, self.positions)
        self.check(len(rows), placed, frame=True)
        self.machine.core.put({self.machine.features_word: rows.astype("<u2").tobytes()})
        words = decoder.words
        tokens = [[(self.machine.features_word + n * words, words)] for n in range(len(rows))]
        self._step(tokens, placed, answer=False, frame=True)

    def _visual(self, count: int, grid: tuple[int, int] | None, seconds: float | None, before: Positions) -> Placement:
        """Positions of `count` visual tokens that follow the positions `before`, and those after them."""
        spec = self.machine.spec
        if grid is None:
            if seconds is not None:
                raise ValueError(f"seconds must be None for tokens without a grid, got {seconds}")
            return before.text(count)
        if spec.text.rope.sections is None:
            raise ValueError(f"grid must be None for a model of family {spec.family}, got {grid}")
        if min(grid) < 1 or grid[0] * grid[1] != count:
            raise ValueError(f"grid must have {count} tokens, got {grid}")
        return before.picture(*grid, seconds, spec.vision.tokens_per_second if spec.vision else None)

    def prompt(self, tokens: str | Sequence[int], *, answer: bool = False) -> int | None:
        """A text, or its token IDs, in steps of at most `Machine.step`; with `answer`, the most probable next token.

        A text is encoded by the tokenizer of the checkpoint, with the tokens that begin a text if the session is empty.
        """
        size, rows = self.machine.step, self.embeddings(tokens)
        self.check(len(rows), self.positions.text(len(rows)))  # of all steps, before the first one
        choice = None
        for start in range(0, len(rows), size):
            step = rows[start : start + size]
            choice = self._step(step, self.positions.text(len(step)), answer=answer and start + size >= len(rows))
        return choice

    def embeddings(self, tokens: str | Sequence[int]) -> list[list[Words]]:
        """Words of the embeddings of a text, see `prompt`."""
        ids = self.token_ids(tokens)
        if not ids:
            raise ValueError("tokens must be at least one token ID, got none")
        return [self.machine.decoder.embedding_words(token) for token in ids]

    def token_ids(self, text: str | Sequence[int]) -> list[int]:
        """Token IDs of a text, see `prompt`."""
        return self.machine.tokenizer.encode(text, begin=not self.position) if isinstance(text, str) else list(text)

    def ask(self, question: str | Sequence[int], *, count: int = 32, sampling: Sampling | None = None) -> Iterator[int]:
        """Answer to a question (see `prompt`): token IDs one by one, at most `count`, up to an end token of the model.

        The machine chooses the most probable token; with `sampling`, the host draws from the logits instead.
        `Machine.tokenizer` decodes the tokens.
        """
        sampler = Sampler(sampling) if sampling else None
        step: str | Sequence[int] = question
        for _ in range(count):
            token = self.prompt(step, answer=True)
            assert token is not None
            if sampler:
                token = sampler.draw(decode(self.logits, FP32))
            yield token
            if token in self.machine.spec.eos_ids:
                return
            step = [token]

    def _check_file(self) -> None:
        self.require_open()
        if self.host or self.partial:
            name = self.machine.policy.name
            raise ValueError(f"session must be of a policy whose state is in its contexts, got policy {name}")

    def check(self, count: int, placed: Placement, *, frame: bool = False) -> None:
        """Raise `ValueError` unless the tokens of a step and their positions are within the limits."""
        self.require_open()
        if frame and self.machine.decoder.layers[0].table.by_frames:
            name, most = self.machine.policy.name, self.machine.plan.clusters - 1  # the text is a cluster
            if not self.position:
                raise ValueError(f"a session of policy {name} must begin with text, got a frame")
            if self.frames == most:
                raise ValueError(f"frames of a session of policy {name} must be at most {most}, got {most + 1}")
        if frame and self.host:
            size = self.host.cache.tokens_per_frame if self.host.cache else count
            if not self.position:
                raise ValueError("a session of policy mosaic must begin with text, got a frame")
            if count != size:
                raise ValueError(f"tokens of a frame of policy mosaic must be {size}, got {count}")
        text, tokens = self.machine.spec.text, self.position + count
        if tokens > self.machine.limits.tokens:
            raise ValueError(f"tokens of a session must be at most {self.machine.limits.tokens}, got {tokens}")
        if placed[1].next > text.max_positions:
            raise ValueError(f"positions of the model must be at most {text.max_positions}, got {placed[1].next}")

    def choose_columns(self, tokens: int, column_share: float) -> None:
        """Write the columns that score tokens by the queries of the first step, of `tokens` tokens, for each layer."""
        config, text, core = self.machine.config, self.machine.spec.text, self.machine.core
        order = pair_order(config.head_dim, config.dpe_inputs)
        for layer, context in zip(self.machine.decoder.layers, self.contexts, strict=True):
            words = core.host_get(layer.rotated["q"], tokens * layer.q * core.word_bytes)
            queries = words.view("<u2").reshape(tokens, text.q_heads, config.head_dim)
            mask = column_mask(queries, order, text.head_dim, column_share)
            core.put({context.columns_word: np.where(mask, BF16_ONE, 0).astype("<u2").tobytes()})

    def hidden_states(self, rows: Sequence[Sequence[Words]]) -> np.ndarray:
        """The tokens of a step before the first layer (T, hidden), from the words that hold them; float64."""
        core = self.machine.core
        read = [np.concatenate([core.host_get(at, words * core.word_bytes) for at, words in row]) for row in rows]
        return decode(np.stack(read).view("<u2"))

    def _step(
        self,
        rows: Sequence[Sequence[Words]],
        placed: Placement,
        *,
        answer: bool,
        frame: bool = False,
        more: int = 0,
    ) -> int | None:
        return run_step(self.machine, [SessionTokens(self, rows, placed, answer, frame)], more)[0]


@dataclass(frozen=True)
class SessionTokens:
    """The tokens of one session in a step.

    rows : for each token, the words of device memory that hold its hidden state ; placed : its positions
    answer : the logits of the last token and the choice are computed ; frame : the tokens are those of a frame
    """

    session: Session
    rows: Sequence[Sequence[Words]]
    placed: Placement
    answer: bool
    frame: bool

    def before(self, machine: Machine) -> None:
        """Count the frame, and write the label of its clusters if the policy has one for each frame."""
        session, layer = self.session, machine.decoder.layers[0]
        session.frames += self.frame
        if layer.table.by_frames:
            machine.core.put({layer.projected: layer.label_image(session.frames if self.frame else 0)})

    def after(self, machine: Machine, number: int) -> int | None:
        """Read logits and choice, answer `number` of the step, and advance the position; returns the choice."""
        session, decoder, core, count = self.session, machine.decoder, machine.core, len(self.rows)
        choice = None
        if self.answer:
            logits = decoder.logits + 2 * number * decoder.blocks
            nbytes = 4 * machine.spec.text.vocabulary
            session.logits = core.host_get(logits, nbytes).view("<u4").astype(np.uint32)
            choice = chosen_token(core.host_get(decoder.choice + 2 * number, 4).tobytes())
        if session.partial and not session.position:
            session.choose_columns(count, session.partial.column_share)
        session.position, session.positions = session.position + count, self.placed[1]
        return choice


def run_step(machine: Machine, steps: Sequence[SessionTokens], more: int) -> list[int | None]:
    """Execute a step for one or more sessions; returns the choice of each one that is answered.

    `more` : commands that the machine has already executed for the step
    """
    decoder, text, core = machine.decoder, machine.spec.text, machine.core
    for step in steps:
        step.session.check(len(step.rows), step.placed, frame=step.frame)
    for step in steps:
        step.before(machine)
    positions = joined([step.placed[0] for step in steps])
    pairs, frequencies = of_pairs(positions, text.head_dim, text.rope.sections), steps[0].session.frequencies
    core.put({decoder.cosines: decoder.angles(*angles(pairs, machine.config.head_dim, frequencies))})
    first = steps[0]
    host = first.session.host  # of a policy whose steps serve one session
    if host:
        host.before(first.session.hidden_states(first.rows) if first.frame else None)
    streams = [StreamTokens(step.rows, step.session.contexts, step.answer, step.frame) for step in steps]
    programs = [decoder.step(streams, share) for share in machine.shares]
    retrieved = core.run(*programs)
    if host:
        moves = host.after(first.session.position, len(first.rows), first.frame)
        stored = [decoder.store(len(first.rows), first.session.contexts, moves, share) for share in machine.shares]
        more += sum(map(len, stored))
        retrieved.offloaded.extend(core.run(*stored).offloaded)
    numbers = accumulate((step.answer for step in steps), initial=0)
    choices = [step.after(machine, number) for step, number in zip(steps, numbers, strict=False)]
    by_host, commands = machine.count_host(), more + sum(map(len, programs))
    for number, step in enumerate(steps):
        own = retrieved.of_stream(number, len(steps))
        step.session.steps.append(Step(len(step.rows), commands, own, *by_host, sessions=len(steps)))
    for step in steps:
        if step.answer and np.isnan(decode(step.session.logits, FP32)).any():
            at = step.session.position - 1
            raise ValueError(f"logits of position {at} must be numbers, got NaN: check the weights")
    return choices


def compile_model(
    checkpoint: Checkpoint,
    config: Config,
    limits: Limits | None = None,
    policy: Policy | None = None,
    *,
    cores: int = 1,
    weights: str = BF16_WEIGHTS,
    interpreter: type[CoreInterpreter] = FastInterpreter,
    progress: Progress = no_progress,
) -> Machine:
    """Compile a checkpoint and load it into the memory of `cores` cores. Results do not depend on the number of cores.

    `policy` : which past tokens the layers attend to; None: ReSV with all clusters
    `weights` : format of the stored weights of the projections, one of `WEIGHTS`; others than BF16 need a core with
    `weight_bits` = 4. Codes of AWQ and GPTQ remain as they are in `int4`, those of FP8 checkpoints in `fp8`.

    Raises ValueError when a size or a group of codes does not fit the core, or the model does not fit the memory.
    """
    return Machine(
        checkpoint, config, limits or Limits(), policy or ResvPolicy(), interpreter, progress, cores, weights
    )


def _check_shared(limits: Limits, config: Config, policy: Policy) -> None:
    """ValueError if the sessions of a machine cannot share their first tokens."""
    table, size = policy.table(config), config.page_tokens
    if not table.keeps_order or limits.resident:
        raise ValueError(
            f"shared must be 0 with resident tokens, and for policies other than full, window and hybrid, "
            f"got {limits.shared}"
        )
    most = limits.tokens if table.kept_pages is None else min(limits.tokens, table.kept_pages[0] * size)
    if limits.shared % size or limits.shared > most:
        raise ValueError(f"shared must be a multiple of page_tokens = {size}, at most {most}, got {limits.shared}")


def _allocate(region: Region, size: int, unit: int, word: int) -> int:
    """Allocate `size` bytes and return the byte address of the first one, a multiple of `unit`."""
    return -(-region.allocate((size + unit) // word) * word // unit) * unit
