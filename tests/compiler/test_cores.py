"""Several cores work on a step: all results have the same bits as on one core."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.builder import Share
from compiler.checkpoint import Checkpoint
from compiler.golden_machine import MachineFault
from compiler.policies import ResvPolicy
from compiler.runtime import Limits, Machine, compile_model
from golden import bf16
from hw.config import Config
from hw.core.isa import Command
from tests.compiler.checkpoints import write_random

CONFIG = Config.preset("tiny").replace(page_frames=256)
SMALL_PICTURE = {  # of few patches
    "llava": {"vision_config.image_size": 8},
    "llava-siglip": {"vision_config.image_size": 12},
    "qwen2.5-vl": {},
}
LIMITS = Limits(tokens=96, step=8, resident=9)
PICTURES = {"qwen2.5-vl": {"height": 16, "width": 32}, "llava-siglip": {"pooled": 2}}


def machine(path, cores: int, limits: Limits = LIMITS, prefetch: str = "same_layer") -> Machine:
    """A machine whose contexts do not fit its device memory."""
    return compile_model(Checkpoint(path), CONFIG, limits, ResvPolicy(0.5, 3, prefetch=prefetch), cores=cores)


def results(path, cores: int, seed: int, prefetch: str):
    """Results of a session on some cores: hidden states, logits, tokens, retrieved tokens, and its contexts."""
    made = machine(path, cores, prefetch=prefetch)
    session, rng, text = made.session(), np.random.default_rng(seed), made.spec.text
    states = []
    for _ in range(4):
        session.features(bf16.encode(rng.standard_normal((5, text.hidden))))
        states.append(made.core.get(made.decoder.x, 10 * text.hidden).tobytes())
    tokens = list(session.ask(rng.integers(text.vocabulary, size=7).tolist(), count=3))
    retrieved = [step.retrieved for step in session.steps]
    assert sum(sum(step.fetched) for step in retrieved) > 0
    return states, session.logits.tolist(), tokens, retrieved, made.core.table.kvmu.memory.tobytes()


@pytest.mark.parametrize(
    "family, prefetch", [("llama", "same_layer"), ("qwen2", "same_layer"), ("llama", "next_layer")]
)
def test_decoder_on_any_number_of_cores(family, prefetch, tmp_path, rng, seed):
    """With 12 cores, six share each of two KV heads; one of 13 has none. 48 are the cores of V-Rex48."""
    write_random(tmp_path, family, rng)
    expected = results(tmp_path, 1, seed, prefetch)
    for cores in (2, 3, 4, 8, 12, 13, 48):
        assert results(tmp_path, cores, seed, prefetch) == expected, f"{cores} cores"


@pytest.mark.parametrize("family", SMALL_PICTURE)
def test_vision_tower_on_any_number_of_cores(family, tmp_path, rng):
    """Visual tokens, and the hidden states of the frame."""
    write_random(tmp_path, family, rng, changes=SMALL_PICTURE[family])
    picture, found = rng.integers(256, size=(16, 24, 3), dtype=np.uint8), []
    for cores in (1, 2, 5):
        made = machine(tmp_path, cores, replace(LIMITS, **PICTURES.get(family, {})))
        made.session().frame(picture)
        assert made.vision is not None
        words, tokens = made.vision.out_words, made.vision.shape.output_tokens
        found.append([made.core.get(word, 2 * CONFIG.dpe_inputs * words * tokens).tobytes()
                      for word in (made.vision.out, made.decoder.x)])  # fmt: skip
    assert found[0][0] != bytes(len(found[0][0])) and found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("groups", [1, 2, 3, 8])
def test_groups_have_all_shares(groups):
    """Every group is worked on by one core, or by cores whose shares are together the whole."""
    for count in [*range(1, 14), 48, 49]:
        cores = [Share(number, count).groups(groups) for number in range(count)]
        assert len({len(mine) for mine, _ in cores}) == 1
        for group in range(groups):
            shares = [share for mine, share in cores if group in mine]
            assert sorted(share.number for share in shares) == list(range(shares[0].count))
            assert len({share.count for share in shares}) == 1


@pytest.mark.parametrize("items", [0, 1, 7, 48, 100])
def test_parts_are_all_items_in_order(items):
    for count in (1, 2, 3, 48):
        parts = [Share(number, count).part(items) for number in range(count)]
        assert [item for part in parts for item in part] == list(range(items))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_products_at_the_same_time_have_their_longer_parts_on_different_cores():
    """Keys, queries and values of Llama-3-8B on 48 cores: two of the 96 result blocks for each core."""
    blocks = 16, 64, 16
    shares = [[Share(n, 48).balanced_with(sum(blocks[:at])) for n in range(48)] for at in range(3)]
    parts = [[share.part(count) for share in each] for each, count in zip(shares, blocks, strict=True)]
    assert [sum(map(len, own)) for own in zip(*parts, strict=True)] == [2] * 48
    for each, count in zip(parts, blocks, strict=True):
        assert sorted(block for part in each for block in part) == list(range(count))


@pytest.mark.parametrize(("items", "cores"), [(64, 48), (224, 48), (3, 2), (7, 5)])
def test_longer_parts_are_those_of_the_last_cores(items, cores):
    """Their ports differ: core n has port n modulo the number of ports."""
    sizes = [len(Share(number, cores).part(items)) for number in range(cores)]
    assert sizes == [items // cores] * (cores - items % cores) + [items // cores + 1] * (items % cores)


def test_programs_that_do_not_meet(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    core = machine(tmp_path, 2).core
    barrier, end = Command("BARRIER", {"cores": 2}), Command("END")
    with pytest.raises(MachineFault, match=r"cores of a BARRIER must be 2 on all cores, got \[2, None\]"):
        core.run([barrier, end], [end])
    with pytest.raises(ValueError, match="programs must be at most 2, one per core, got 3"):
        core.run([end], [end], [end])


def test_rejects_a_bad_number_of_cores(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    with pytest.raises(ValueError, match="cores must be between 1 and 64, got 65"):
        machine(tmp_path, 65)
