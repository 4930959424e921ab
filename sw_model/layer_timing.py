"""Times of the parts of a decoder layer on an accelerator, from which the task graph of a step is made.

What the cores load for its products, how long they read weights, keys and values, and how long the core that retrieves
needs for the selection of clusters (WTU), for their look-up and for the new tokens (KVMU). These units wait for the
device memory, whose latency depends on what the other cores read in the meantime.
"""

from dataclasses import dataclass
from math import ceil

from hw.core.processor import READ_ENGINES
from hw.dre.kvmu.kvmu import WAITING_EXTENTS
from sw_model.core_ports import burst_bytes, product_s, read_latency_s, vector_bytes_per_s, word_bytes
from sw_model.policies import Work
from sw_model.policies.base import BF16_BYTES
from sw_model.rates import Rates
from sw_model.systems import Core, System
from sw_model.unit_cycles import (
    ProductLoads,
    attention_bytes,
    attention_passes,
    copy_cycles,
    listed_share,
    open_cycles,
    place_cycles,
    product_loads,
    select_cycles,
    wtu_cycles,
    wtu_read_cycles,
    wtu_reads,
)
from sw_model.workloads import Model

# part of the words in flight that a single word waits for, see `tests/sw_model/memory/bench_word_waits.py`: on the
# memories of V-Rex8 and V-Rex48 0.57 and 0.73, while the load units of all cores have their bursts in flight
WORD_WAITS = 0.65


@dataclass(frozen=True)
class LayerTiming:
    """Times of the parts of a layer.

    system, model, work, rates : of the step
    batch : sequences whose work is `work` ; turns : streams that are served in turn, while `work` is that of one
    """

    system: System
    model: Model
    work: Work
    rates: Rates
    batch: int
    turns: int = 1

    @property
    def core(self) -> Core:
        """The cores of the system."""
        assert self.system.core
        return self.system.core

    @property
    def hertz(self) -> float:
        """Clock of the cores."""
        return self.core.clock_mhz * 1e6

    # -- products and attention ---------------------------------------------------------------------------------
    def projections(self) -> list[tuple[int, tuple[int, ...]]]:
        """Inputs and outputs of the projections of a layer; those of one entry are computed at the same time.

        Queries, keys and values; output; gate and up; down.
        """
        model, width = self.model, self.model.q_heads * self.model.head_dim
        return [
            (model.hidden, (model.key_dim, model.key_dim, width)), (width, (model.hidden,)),
            (model.hidden, (2 * model.ffn,)), (model.ffn, (model.hidden,)),
        ]  # fmt: skip

    def product(
        self, vectors: int, inputs: int, matrices: tuple[int, ...], weight_bytes: float, interleaved: bool
    ) -> tuple[ProductLoads, float]:
        """What the cores load for a product, and the time in which they read its weights."""
        loads = product_loads(vectors, inputs, sum(matrices), self.core)
        block = ceil(vectors / loads.weights)
        once = product_s(self.system, block, inputs, matrices, loads, weight_bytes, interleaved=interleaved)
        return loads, loads.weights / loads.groups * once

    def times(self, layer: int) -> float:
        """Attended past tokens of a layer as a multiple of those of `work`."""
        return self.work.first_layer if layer == 0 else 1.0

    def attended(self, layer: int) -> tuple[int, int, int]:
        """Query rows of a KV head, keys of a row, and scores of a layer."""
        t = ceil(self.work.processed_tokens)
        keys = ceil(self.work.attended_tokens * self.times(layer)) + t
        return t * self.model.group, keys, t * self.model.q_heads * keys * self.batch

    def reading_s(self) -> tuple[float, float]:
        """Seconds in which the cores read the weights of a layer; and its keys, values and scores."""
        tokens, size = ceil(self.work.processed_tokens) * self.batch * self.turns, self.rates.assume.weight_bits / 8
        products = (self.product(tokens, *each, size, size == BF16_BYTES)[1] for each in self.projections())
        rows, keys, scores = self.attended(1)
        read_s = self.work.attend_read_bytes / 2 / self.rates.dram_kv
        passes, (written, softmax, weights) = attention_passes(rows, self.core), attention_bytes(keys, self.core)
        softmax_s = sum(softmax) * scores / vector_bytes_per_s(self.system, *softmax)
        attention_s = read_s * sum(passes) + (written + weights) * scores / self.rates.dram_stream + softmax_s
        return sum(products), attention_s

    # -- retrieval ----------------------------------------------------------------------------------------------
    def heads(self) -> float:
        """KV heads for which a core selects clusters, one after the other."""
        heads = self.model.kv_heads * self.batch
        return heads / min(heads, self.core.retrieving)

    def placed_s(self) -> float:
        """Seconds in which the new tokens get clusters and slots."""
        return place_cycles(self.stored_tokens(), self.latency(word_bytes(self.core)), self.core) / self.hertz

    def stored_s(self) -> float:
        """Seconds in which the keys and values of the new tokens are copied, and the next layer's tables opened."""
        read = read_latency_s(self.system.memory, BF16_BYTES * self.core.config.head_dim) * self.hertz
        candidates = self.work.hamming_pairs / ceil(self.work.processed_tokens)
        opened = open_cycles(candidates, self.latency(word_bytes(self.core)), self.core)
        return (copy_cycles(self.stored_tokens(), read, self.core) + opened) / self.hertz

    def stored_tokens(self) -> float:
        """New tokens that are stored."""
        return self.work.append_bytes / self.token_bytes()

    def token_bytes(self) -> float:
        """Bytes of a stored token of a layer."""
        return self.model.kv_bytes * self.rates.assume.kv_bits / 16

    def selection_s(self) -> float:
        """Seconds of the selection in all rows, less those hidden by look-ups and copies.

        The clusters of a KV head are looked up and copied while the rows of the next one are selected.
        """
        seconds = self.wtu_cycles(self.latency(burst_bytes(self.system))) / self.hertz
        return seconds - (self.heads() - 1) * min(seconds / self.heads(), self.listed_s())

    def row(self) -> tuple[float, float, Core, float]:
        """Entries of a row of the threshold, buckets that it examines, the cores, and levels of buckets."""
        return self.work.threshold_entries, self.work.threshold_passes, self.core, self.work.threshold_levels

    def wtu_cycles(self, latency: float) -> float:
        """Cycles of the threshold in all rows; a row is read in bursts of `latency` while another one is selected."""
        rows, row = self.work.threshold_rows, self.row()
        reads = rows / row[2].retrieving * max(1, wtu_reads(*row))
        return max(wtu_cycles(rows, *row), reads * wtu_read_cycles(row[0], latency, row[2]))

    def select_cycles(self, latency: float, times: float = 1.0) -> float:
        """Cycles in which the KVMU looks up the selected clusters, `times` those of the work."""
        work = self.work
        lookups = select_cycles(work.selects * times, work.clusters, latency, self.core) if work.selects else 0.0
        return self.heads() * lookups

    def select_s(self, times: float = 1.0) -> float:
        """Seconds in which the KVMU looks up the selected clusters of a layer, `times` those of the work."""
        if not self.system.core or not self.work.selects:
            return 0.0
        return self.select_cycles(self.latency(word_bytes(self.core)), times) / self.hertz

    def listed_s(self) -> float:
        """Seconds in which the last clusters of a KV head, those in the list memory, are looked up and copied."""
        fetched, lookups_s = self.fetched_share(), self.select_s() / self.heads()
        listed = listed_share(self.work.threshold_entries, self.core)
        copies_s = self.rates.fetch_bytes / self.copies_per_s() / self.heads()
        result = min(listed, 1 - fetched) * lookups_s
        if listed > 1 - fetched:
            result += (listed - 1 + fetched) / fetched * max(copies_s, fetched * lookups_s)
        return result

    def fetched_share(self) -> float:
        """Share of the selected tokens that are fetched.

        They are older than the others and have lower numbers, so that copies are in progress while they are looked up.
        """
        selected = self.work.attended_tokens * self.token_bytes() * self.batch
        return min(1.0, self.rates.fetch_bytes / selected) if selected else 0.0

    def copies_per_s(self) -> float:
        """Bytes per second of copies: the rate of the link, or of a slower drive behind it."""
        return min(self.rates.link, self.rates.storage or self.rates.link)

    def lookups_after_s(self, select_s: float, total: int) -> float:
        """Part of `select_s`, the seconds of the look-ups, in which no copies wait, for a fetch of `total` bytes.

        Recent clusters are looked up while the last copies wait, then while nothing is copied.
        """
        page_bytes = self.core.config.page_tokens * self.token_bytes() / self.model.kv_heads
        waiting = self.heads() * min(WAITING_EXTENTS * page_bytes, total / self.heads())  # of pages whose copies wait
        return max(0.0, (1 - self.fetched_share()) * select_s - waiting / self.copies_per_s())

    # -- latency of the device memory ---------------------------------------------------------------------------
    def latencies(self, nbytes: int) -> tuple[float, float, float]:
        """Cycles from a request for `nbytes` of the core that retrieves to the data, for three states of the cores.

        They read nothing, weights, or keys and values. The words that their load units have requested before are
        served first. The words of a burst go to several
        channels of the memory, and the last one counts; a single word waits for one channel.
        """
        alone = read_latency_s(self.system.memory, nbytes) * self.hertz
        words = self.core.config.cores * READ_ENGINES["load"][1] * word_bytes(self.core)
        is_burst = nbytes >= burst_bytes(self.system)
        weights = (1.0 if is_burst else WORD_WAITS) * words / self.rates.dram_stream * self.hertz
        # if few channels have the keys and values, few single words wait there, but most bursts
        attending = words / self.rates.dram_kv * self.hertz if is_burst else weights
        return alone, max(alone, weights), max(alone, attending)

    def busy_shares(self) -> tuple[float, float]:
        """Shares of the selection and the fetch that are done while the cores read weights, and while they attend."""
        if self.work.schedule == "same_layer":  # all other cores wait for the fetch
            return 0.0, 0.0
        conditions = zip(self.latencies(word_bytes(self.core)), self.latencies(burst_bytes(self.system)), strict=True)
        _, reading, attending = (self.retrieval_cycles(word, burst) for word, burst in conditions)
        weights, attention = (seconds * self.hertz for seconds in self.reading_s())
        if self.turns > 1:  # only one of the streams is selected and fetched while weights are read
            weights = min(weights, reading) / self.turns
        attended = min(1.0, attention / attending) if attending else 1.0
        return min(1.0 - attended, weights / reading) if reading else 0.0, attended

    def retrieval_cycles(self, word: float, burst: float) -> float:
        """Cycles of selection or fetch, the longer one, at these latencies of a word and of a burst."""
        copies = self.rates.fetch_bytes / self.copies_per_s() * self.hertz
        rows = self.wtu_cycles(burst) if self.work.threshold_rows else 0.0
        return max(self.select_cycles(word), copies, rows)

    def latency(self, nbytes: int) -> float:
        """Cycles from a request for `nbytes` of the core that retrieves to the data, mean over a layer."""
        alone, reading, attending = self.latencies(nbytes)
        weights, attention = self.busy_shares()
        return alone + weights * (reading - alone) + attention * (attending - alone)
