"""Pages of docs/measurements about the programs of the systems: their frames and tokens, and all systems on V-Rex8."""

from __future__ import annotations

from collections.abc import Iterator

from docs.markdown import table
from sw_model.compare import SYSTEM_HEAD, measure, measured_policies, system_cells, system_table
from sw_model.media.generator import Generator, coin
from sw_model.papers.programs import BOUNDED, COMMAND, HEAD, cells, program_rows, recorded, wait

QUALITY_FRAMES, QUALITY_EVERY = 120, 24  # frames of the stream of `systems`, and interval of the measured ones


def programs() -> Iterator[str]:
    """Frames and text tokens from the programs of the cores, compared with paper, formula and bound."""
    rows = program_rows()
    runs = recorded().values()
    commits = sorted({entry["commit"] for entry in runs})
    yield (
        f"Cycles and bytes of the cycle model `sw_model/cycles`, recorded with `{COMMAND}` at commit "
        f"{', '.join(commits)}; this page reads the record. A frame is the decoder layers and the LM head for the "
        "tokens of a frame of each stream of Llama-3-8B, a text step is one token of each, and the vision tower has "
        "rows of its own; the paper's frames include the tower. Retrieved, resident and fetched tokens are those that "
        "the closed formula of the policy counts; the pages outside device memory cross the nominal link of V-Rex "
        "Table I. The first, the second and the last layer are simulated, and the second one stands for all others. "
        "The bound is the larger one of the formula's bytes of the device memory at its peak rate and its bytes of the "
        "link at its rate. Bytes of the link are those of both directions."
    )
    yield (
        "`window` is the policy `hybrid` without its state-space branch, as the closed formula counts it; `hybrid` has "
        "a branch that is twice as wide as the queries. Both keep a constant number of pages, so that the step after "
        f"{BOUNDED:,} tokens stands for all later ones. QuickPrefill prunes each frame."
    )
    yield (
        "Mosaic: the program of the step and the one that stores its tokens, without the work of the host between them "
        "and without splits of clusters; all heads select the text and 19 other clusters. Its pages have left device "
        "memory once before, so that they leave again without a copy. CodecSight: a frame is that of a stride of 16: "
        "its own pass, a quarter of the pass of a refreshed frame, and a sixteenth of the change to the next window; "
        "each pass reads all weights. The first frame of a window waits for all four refreshed ones. InfiniGenP: the "
        "rows of a KV head select the same tokens; the first layer selects all."
    )
    yield (
        "Longer pasts do not fit the tables of the core: ReKV has a cluster for each frame and Mosaic one for 32 "
        "tokens, of which the HCU has 1,023 candidates at most besides the text; InfiniGenP has one for each token, at "
        "most 32,768."
    )
    yield (
        "A step of several streams reads the weights once for all of them. Forty tokens do not fit the operand memory: "
        "each core loads their activations again for every 64 results, 1.6 times as many words as the weights alone, "
        "and 80 tokens take more than the accumulators, 3.3 times. While one stream attends, the next one is stored "
        "and selected, and its pages are fetched; the pages of the first one are fetched during the layer before. The "
        "core has two sets of page lists, so the fetches of the others do not overlap with the feed-forward part."
    )
    yield table(HEAD, (cells(row) for row in rows))
    yield (
        "The formula describes the machine of the programs: `core.retrieval=one`, `core.weight_reads=blocks`, and "
        "the WTU with a histogram. The rates of the device memory are replays of the accesses of all cores "
        "(`sw_model.core_ports`), with the ports between them and the memory, the activations that all cores load, "
        "and the instructions of vector programs, which all cores read again for each row from one bank. With "
        "InfiniGenP, a page has one token, and the keys and values of all these pages lie in one of 16 channels. While "
        "the cores gather them, 4.5 of 11.0 million cycles of a layer after 10,000 tokens, this channel has a long "
        "queue. A burst of the WTU covers eight channels, so that each second one waits in it, and the selection "
        "hardly advances: that of the first KV head takes 5.1 million cycles, that of a later one 0.7 to 1.4. The "
        "formula computes the latency of a burst from the words in flight and the rate of the gathers. It does not "
        "count these effects:\n\n"
        "- V-Rex48: each phase of a layer ends with a barrier and begins with the latency of its first reads.\n"
        "- `vrex8-plus`, a frame after 700,000 tokens ([frames a second](plus.md)), 8 % longer in the formula: the "
        "selection, look-ups and copies of a KV head take 3.3 million cycles while the cores attend, and 1.7 million "
        "afterwards. The formula has one mean latency for all KV heads.\n"
        "- Vision tower: in its attention the vector unit waits for each row of 576 scores, 18 words, because its "
        "buffer of 32 words does not hold two: a row takes 510 cycles on V-Rex8, of which the unit works 67."
    )
    yield (
        "What the programs need above the bound, in cycles of a layer of a frame:\n\n"
        "- Refresh: a DRAM with all-bank refresh gives at most 91 to 92 % of its peak rate, so that no step is below "
        "1.09 times the bound. V-Rex8 after 1,000 tokens needs 2,000 thousand, of which 1,855 thousand are the weights "
        "at that rate. The others are activations that do not fit the operand memory in `down` (35), other activations "
        "and results (18), attention and retrieval (58), and vector phases, in which no weights are read (38).\n"
        "- V-Rex48, imbalance: 4,096 results are 64 blocks for 48 cores. In the output projection and in `down` 16 "
        "cores read a second block alone, at 0.64 to 0.76 words a cycle. After 1,000 tokens this takes 24 to 29 of 282 "
        "thousand.\n"
        "- V-Rex48, instructions: a row of a vector program waits until all cores have read the instructions for their "
        "rows from one bank: a row of exponentials after 10,000 tokens takes some 400 cycles, of which the unit works "
        "21. After 1,000 tokens the vector phases take 20 of 282 thousand.\n"
        "- V-Rex8 after 40,000 tokens: a layer needs 6,688 thousand, the link 6,636 of them. The scores of the next "
        "layer are computed during the fetch, and the clusters of a KV head are selected and looked up while the pages "
        "of the one before are copied. The link is idle from the end of a fetch up to the first copy of the next "
        "layer: CLUSTER 33, STORE 20 thousand. The first layer fetches for itself, too: 10 million.\n"
        "- V-Rex48 after 40,000 tokens: a layer needs 900 thousand, the link 830 of them. CLUSTER takes 28, STORE 14; "
        "the others are MEANS, OPEN, the rows of the first KV head and the look-up of its first clusters.\n"
        "- V-Rex48 after 10,000 tokens: 32 of the 48 cores gather the values, a word of each token, in 24 of 322 "
        "thousand. More reads in flight did not help: with 128 words in 32 bursts instead of 64 in 16, a frame after "
        "20,000 tokens took 6 % longer, because copies and selection waited behind them."
    )
    yield "Critical path of a repeated layer:"
    yield table(
        ("system", "policy", "step", "streams", "past tokens", "commands"),
        (
            (row.point.system, row.point.policy, row.point.stage, row.point.batch, f"{row.point.past:,}",
             "; ".join(wait(entry) for entry in row.waits))
            for row in rows
            if row.waits
        ),
    )  # fmt: skip


def systems() -> Iterator[str]:
    """All systems of the papers on V-Rex8: frame, token, bytes, energy and quality of attention."""
    config = coin()
    chunks = Generator(config).chunks(QUALITY_FRAMES)
    quality, length = measure(chunks, config.geometry, config.tokens_per_frame, measured_policies(), QUALITY_EVERY)
    yield (
        "Llama-3-8B, one stream, without the vision tower. A source `program` says that the decoder layers and the LM "
        "head are compiled programs on the cycle model ([Frames and tokens from programs](programs.md)), `formula` "
        "that the number is that of the closed formula (`sw_model/policies`). Link and device bytes and energy are "
        "those of the frame. A program's energy has the busy times of the closed formula. Recall and output error are "
        f"those of frames on the generator's stream of {length:,} tokens, without a trained model, at every context "
        "length; policies with a budget keep more of such a stream than of a longer one, and the branch of `hybrid` is "
        "not part of its quality. `vrex compare --systems` "
        "prints the table, with `--source generator` also the quality."
    )
    yield table(SYSTEM_HEAD, (system_cells(row) for row in system_table(quality)))
