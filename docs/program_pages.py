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
        "(`sw_model.core_ports`). The formula does not count these effects:\n\n"
        "- V-Rex48, all steps: core 0 writes the mean keys and copies the new tokens before the attention, and the "
        "other cores wait. Each phase of a layer ends with a barrier. All cores load the same activations from the "
        "same channels at once. Vector commands wait behind reads of weights.\n"
        "- V-Rex48 from 5,000 tokens: 16 of the 48 cores gather the values, a word of each token. After 10,000 tokens "
        "they take 37 us of a layer's 412 us. More reads in flight do not help: with 128 words in 32 bursts instead of "
        "64 in 16, a frame after 20,000 tokens takes 6 % longer, because copies and selection wait behind them.\n"
        "- V-Rex48 from 20,000 tokens: a SELECT takes 69 us alone where the link needs 57; the formula hides look-ups "
        "and selection behind the copies, as V-Rex8 does.\n"
        "- Several streams: the activations that all cores load again come from the same channels at once.\n"
        "- InfiniGenP after 10,000 tokens: a page has one token, and the values of all these pages lie in one of 16 "
        "channels. While they are gathered, the words that the selection reads from this channel wait longer: a SELECT "
        "takes up to 4.1 ms then, and 1.1 ms after it. The formula counts the scores as written through the same "
        "channel, which hides a part of it. With channel numbers that depend on the upper bits of the address, this "
        "frame took 355 instead of 512 ms without the LM head, and that of ReSV 92 instead of 96 ms.\n"
        "- Vision tower: its products and vector commands start after barriers. In its attention the vector unit waits "
        "for each row of 576 scores, 18 words, because its buffer of 32 words does not hold two: a row takes 510 "
        "cycles on V-Rex8, of which the unit works 67."
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
