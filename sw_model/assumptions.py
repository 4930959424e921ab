"""Free choices of the system model: one set of values for every run and every figure."""

from dataclasses import dataclass

from util import checks

RESIDENCIES = ("recent", "whole")
LINKS = ("paper", "realistic")  # presets of the host link: nominal rate, or packets and drive
# operations that an eager GPU framework starts for one decoder layer and for one vision layer
DECODER_OPS, VISION_OPS = 30, 16


@dataclass(frozen=True)
class Assumptions:
    """The free choices of the model, shared by every figure.

    resident_tokens       newest tokens of a stream whose KV stays in device memory. V-Rex calls them the recent region
                          and gives no size; 4096 is the capacity of the page table in this hardware.
    residency             `recent`: that many tokens, as published. `whole`: as many as device memory holds in addition
                          to the weights, the data that the policy always keeps there, and the fetched KV of two layers,
                          but at most the pages of all page frames of a core (`page_frames`).
    kv_bits               bits of one stored element of the KV cache, headers included: 16 is BF16, 4.5 the format of
                          the KV codec at `paper`. Policy `oaken` has a format of its own.
    weight_bits           bits of one weight of the projections of the decoder layers, scales included: 16 is BF16; the
                          formats of the weight decoder have 4.25 (MXFP4), 4.5 (INT4) and 8.5 (FP8) at `paper`.
    retained_hit          share of the selected older KV that is still in device memory from the step before. 0.31 is
                          the mean overlap of the ReSV selections of consecutive frames on the synthetic stream (golden
                          model, 46 frames of two seeds between 4.5K and 10K tokens; 0.17 to 0.43). 0: every fetched
                          token is dropped at the end of its step.
    idle_share            power of a waiting unit as a share of its power at work: the clock, which nothing gates. The
                          mapped MAC tree of 16 inputs in this project draws 1.81 mW idle and 7.08 mW under random
                          operands.
    chunks                pieces per transfer and per matrix in the event model; more pieces change a total by 1 or 2 %

    Raises ValueError for a value outside its range.
    """

    resident_tokens: int = 4096
    residency: str = "recent"
    kv_bits: float = 16.0
    weight_bits: float = 16.0
    retained_hit: float = 0.31
    idle_share: float = 0.255
    chunks: int = 4

    def __post_init__(self) -> None:
        try:
            for name in ("retained_hit", "idle_share"):
                checks.real(name, getattr(self, name), 0, 1)
            checks.integer("resident_tokens", self.resident_tokens, 0)
            checks.one_of("residency", self.residency, RESIDENCIES)
            for name in ("kv_bits", "weight_bits"):
                checks.real(name, getattr(self, name), 1, 16)
            checks.integer("chunks", self.chunks, 1)
        except TypeError as error:
            raise ValueError(str(error)) from None
