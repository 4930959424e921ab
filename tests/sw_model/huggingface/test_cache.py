"""The retrieval cache on tiny decoders: selections of the golden models, attention, logits, bounded device memory."""

import numpy as np
import pytest

from golden.attention import light_attention
from golden.hybrid import HybridConfig
from golden.quickvideo import QuickVideoConfig
from golden.resv import ResvConfig
from golden.rope import rotate
from golden.wicsum import WtuConfig
from sw_model.huggingface.resv import CompiledReSV
from sw_model.policies import POLICIES, ReSV
from tests.sw_model.huggingface.conftest import FAMILIES

FRAME = 6
# small budgets, so that every policy leaves tokens out of a short stream
OPTIONS = {
    "resv": {"config": ResvConfig(wics_ratio=0.3)},
    "infinigen": {"alpha": 0.01},
    "infinigenp": {"alpha": 0.5, "budget": 9},
    "quickprefill": {"config": QuickVideoConfig(group_frames=2, head_mode="per_head")},
    "hybrid": {"config": HybridConfig(block=4, sink_blocks=1, recent_blocks=3, max_tokens=20)},
}


def make_cache(policy, **changes):
    from sw_model.huggingface import RetrievalCache

    arguments = {"device_tokens": 13, "block_tokens": 7, "frame_tokens": FRAME, "options": OPTIONS.get(policy)}
    if policy in ("rekv", "mosaic", "codecsight"):
        arguments["budget_frames"] = 2
    return RetrievalCache(policy, **{**arguments, **changes})


def run(model, cache, torch, steps, seed=0):
    """Logits of the steps (numbers of tokens), which run one after the other."""
    generator = torch.Generator().manual_seed(seed)
    logits = []
    for tokens in steps:
        ids = torch.randint(0, 300, (1, tokens), generator=generator)
        logits.append(model(input_ids=ids.to(model.device), cache=cache).logits[0])
    return torch.cat(logits).cpu().numpy()


@pytest.fixture
def recorded(monkeypatch, torch):
    """Calls of the attention: (layer, past, query, key, value, output), NumPy arrays (T, heads, d)."""
    from sw_model.huggingface.cache import RetrievalLayer

    calls, plain = [], RetrievalLayer.attend

    def attend(self, module, query, key, value, mask, options):
        past = self.get_seq_length()
        output = plain(self, module, query, key, value, mask, options)
        arrays = [x[0].transpose(0, 1).cpu().numpy().copy() for x in (query, key, value)]
        calls.append((self.index, past, *arrays, output[0].cpu().numpy().copy()))
        return output

    monkeypatch.setattr(RetrievalLayer, "attend", attend)
    return calls


STEPS = [FRAME] * 8 + [FRAME - 2, 1, 1] + [FRAME] * 3 + [1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_selections_and_attention_are_those_of_the_golden_models(
    family, policy, make_model, torch, recorded, monkeypatch
):
    """The policy of `sw_model.policies` selects the same tokens from the recorded keys; golden attention agrees."""
    from sw_model.huggingface import prepare
    from sw_model.huggingface.cache import bf16_array

    steps = [FRAME if tokens == FRAME - 2 else tokens for tokens in STEPS]  # frames of mosaic have equal lengths
    model = prepare(make_model(family))
    cache = make_cache(policy)
    selections = []
    bind = type(cache).bind

    def recording_bind(self, module, q_heads, store):
        first = self.policy is None
        bound = bind(self, module, q_heads, store)
        if first:
            select = bound.select
            bound.select = lambda *args: selections.append(select(*args)) or selections[-1]
        return bound

    monkeypatch.setattr(type(cache), "bind", recording_bind)
    run(model, cache, torch, steps)
    classes = {**POLICIES, "resv": ReSV}
    if OPTIONS.get(policy):
        golden = classes[policy](cache.policy.model, **OPTIONS[policy])
    else:
        golden = classes[policy].for_stream(
            cache.policy.model, tokens_per_frame=FRAME, theta=10000.0, budget_frames=cache.budget_frames
        )
    assert type(golden) is POLICIES[policy]
    kept = {0: [], 1: [], 2: []}
    fewer = 0
    for (layer, past, q, k, v, output), selection in zip(recorded, selections, strict=True):
        bf16 = [bf16_array(torch.from_numpy(x).transpose(0, 1)) for x in (q, k, v)]
        golden.append(layer, *bf16[1:])
        expected = golden.select(layer, bf16[0], "text" if len(q) == 1 else "frame")
        for h in range(2):
            assert np.array_equal(selection.tokens[h], expected.tokens[h])
            if expected.allowed is not None:
                assert np.array_equal(selection.allowed[h], expected.allowed[h])
            fewer += len(expected.tokens[h]) < past
        for name in ("keys", "values", "pseudo_keys", "pseudo_values"):
            assert np.array_equal(getattr(selection, name), getattr(expected, name)), name
        kept[layer].append((k, v))
        keys, values = (np.concatenate(parts) for parts in zip(*kept[layer], strict=True))
        if expected.keys is not None:
            keys, values = np.concatenate([expected.keys, k]), np.concatenate([expected.values, v])
        out = light_attention(
            q, keys, values, expected.tokens, expected.allowed, expected.pseudo_keys, expected.pseudo_values
        )
        assert np.abs(out - output).max() < 1e-5 * max(1, np.abs(out).max())
    assert cache.tokens == sum(steps)
    assert (fewer > 0) == (policy not in ("full", "oaken"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["full", "resv", "rekv", "infinigenp", "quickprefill", "hybrid"])
@pytest.mark.parametrize("block", [None, 5])
def test_whole_selection_gives_the_logits_of_the_dynamic_cache(family, policy, block, make_model, torch):
    """At ratio 1.0 every policy attends to all tokens, so logits agree within float error."""
    from transformers import DynamicCache

    from sw_model.huggingface import prepare

    everything = {
        "resv": {"config": ResvConfig(wics_ratio=1.0)},
        "rekv": {"frames": 100},
        "infinigenp": {"alpha": 1e9},
        "quickprefill": {"config": QuickVideoConfig(rho=1.0)},
    }
    model = make_model(family)
    expected = run(model, DynamicCache(config=model.config), torch, STEPS)
    prepare(model)
    assert np.array_equal(run(model, DynamicCache(config=model.config), torch, STEPS), expected)
    cache = make_cache(policy, options=everything.get(policy), block=block)
    assert np.abs(run(model, cache, torch, STEPS) - expected).max() < 2e-6 * np.abs(expected).max()
    assert cache.statistics()["ratio"] == 1.0


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_with_the_full_policy_gives_the_tokens_of_the_model(family, attention, make_model, torch):
    """A model with `sdpa`, the default, needs no change; one with another attention function needs `prepare`."""
    from sw_model.huggingface import RetrievalCache, prepare

    model = make_model(family)
    model.set_attn_implementation(attention)
    ids = torch.arange(1, 41, device=model.device)[None]  # 0 is padding
    arguments = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **arguments)
    cache = RetrievalCache("full", device_tokens=8)
    if attention != "sdpa":
        prepare(model)
    out = model.generate(ids, cache=cache, **arguments)
    assert torch.equal(out, expected)
    more = model.generate(out, cache=cache, **arguments)  # continues from the cached tokens
    assert torch.equal(more, model.generate(out, **arguments))
    cache.reset()
    assert cache.tokens == 0
    assert torch.equal(model.generate(ids, cache=cache, **arguments), expected)


def test_blocks_of_a_step_are_steps_of_the_policy(make_model, torch):
    """A prompt that is divided into blocks gives the logits of blocks that run one after the other."""
    from sw_model.huggingface import prepare

    model = prepare(make_model())
    one = run(model, make_cache("resv", stage="frame"), torch, [FRAME] * 5)
    generator = torch.Generator().manual_seed(0)
    ids = torch.cat([torch.randint(0, 300, (1, FRAME), generator=generator) for _ in range(5)], 1)
    cache = make_cache("resv", stage="frame", block=FRAME)
    both = model(input_ids=ids.to(model.device), cache=cache).logits[0].cpu().numpy()
    assert np.abs(one - both).max() < 1e-5 * np.abs(one).max()


@pytest.mark.parametrize("policy", ["resv", "full", "hybrid"])
def test_device_memory_is_bounded(policy, make_model, torch, tmp_path):
    """The device holds `device_tokens` tokens of a layer, however long the stream is; a file gives the same logits."""
    from sw_model.huggingface import prepare

    model = prepare(make_model())
    cache, files = make_cache(policy), make_cache(policy, folder=tmp_path / "rows")
    steps = [FRAME] * 40
    first = run(model, cache, torch, steps[:5], seed=1)
    bytes_of_a_row = 2 * 2 * 16 * 4
    sizes = [cache.statistics()["device_bytes"]]
    for part in range(2):
        expected = run(model, cache, torch, steps[5:], seed=2 + part)
        sizes.append(cache.statistics()["device_bytes"])
    assert sizes == [3 * 13 * bytes_of_a_row] * 3
    assert cache.statistics()["resident_tokens"] == 13
    assert cache.statistics()["host_bytes"] == 3 * cache.tokens * bytes_of_a_row
    assert np.array_equal(run(model, files, torch, steps[:5], seed=1), first)
    for part in range(2):
        assert np.array_equal(run(model, files, torch, steps[5:], seed=2 + part), expected) == (part == 1)
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == [f"layer{i}.rows" for i in range(3)]


@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
@pytest.mark.parametrize("policy", ["hybrid", "resv"])
def test_compact_positions_are_those_of_the_attended_tokens(kind, policy, make_model, torch, recorded):
    """Attention of re-rotated keys equals attention of keys that are rotated to the positions 0, 1, ... at once."""
    from sw_model.huggingface import prepare, rope

    parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = prepare(make_model(rope_parameters=parameters))
    cache = make_cache(policy, positions="compact")
    tokens = []
    run(model, cache, torch, [FRAME])
    select = cache.policy.select
    cache.policy.select = lambda *args: tokens.append(select(*args).tokens) or select(*args)
    run(model, cache, torch, [FRAME] * 9 + [1], seed=1)
    frequency = rope.frequencies(model.config, 16)
    if kind == "default":
        assert np.allclose(rotate(np.ones(16), 3.0, 10000.0), rope.rotate(torch.ones(1, 16), np.array([3]), frequency))
    kept = {layer: [call[3:5]] for layer, call in enumerate(recorded[:3])}

    def rotated(x, shifts):
        return rope.rotate(torch.from_numpy(x).double().transpose(0, -2), shifts, frequency).transpose(0, -2).numpy()

    moved = 0
    for (layer, past, q, k, v, output), selected in zip(recorded[3:], tokens, strict=True):
        kept[layer].append((k, v))
        keys, values = (np.concatenate(parts) for parts in zip(*kept[layer], strict=True))
        for h in range(2):
            ids = np.r_[selected[h], past : past + len(k)]
            shifts = np.arange(len(ids)) - ids
            moved += shifts[-1] < 0
            head_keys = rotated(keys[ids, h], shifts)[:, None]
            queries = rotated(q[:, 2 * h : 2 * h + 2], shifts[-len(k) :])
            out = light_attention(queries, head_keys, values[ids, h][:, None], [np.arange(len(selected[h]))])
            assert np.abs(out - output[:, 2 * h : 2 * h + 2]).max() < 1e-4 * max(1, np.abs(out).max())
    assert moved


def test_default_resv_has_compiled_kernels(make_model, torch):
    from sw_model.huggingface import RetrievalCache, prepare

    cache = RetrievalCache()
    run(prepare(make_model()), cache, torch, [4, 1])
    assert type(cache.policy) is CompiledReSV
    assert cache.policy.config == ResvConfig(wtu=WtuConfig(max_row_clusters=1 << 20))


def test_policy_of_a_file(make_model, torch, tmp_path):
    """A policy of the user works without a change, and a function can make the policy."""
    from sw_model.huggingface import RetrievalCache, prepare

    source = """
from sw_model.policies import Policy, Selection
import numpy as np

class Newest(Policy):
    name = "newest"
    def select(self, layer, queries, stage):
        self.queries(layer, queries, stage)
        past = self.past(layer)
        assert self.keys(layer)[:past].shape == (past, 2, 16)
        assert sum(1 for _ in self.values(layer)) == past + len(queries)
        return Selection((np.arange(max(0, past - 5), past),) * self.model.kv_heads)
    def account(self, step):
        return self.work(step, 5, 1)
"""
    path = tmp_path / "newest.py"
    path.write_text(source)
    model = prepare(make_model())
    cache = RetrievalCache(str(path), device_tokens=4)
    logits = run(model, cache, torch, [FRAME] * 4)
    assert cache.statistics()["ratio"] == pytest.approx(15 / (6 + 12 + 18))
    other = RetrievalCache(lambda shape: type(cache.policy)(shape), device_tokens=40)
    assert np.allclose(run(model, other, torch, [FRAME] * 4), logits, atol=1e-6)


def test_invalid_arguments_are_rejected(make_model, torch):
    from sw_model.huggingface import RetrievalCache, prepare

    with pytest.raises(ValueError, match=r"policy must be one of full.*got 'none'"):
        RetrievalCache("none")
    with pytest.raises(ValueError, match="device_tokens must be at least 0, got -1"):
        RetrievalCache(device_tokens=-1)
    with pytest.raises(ValueError, match="positions must be one of absolute, compact, got 'new'"):
        RetrievalCache(positions="new")
    model = make_model()
    model.set_attn_implementation("eager")
    ids = torch.zeros((1, 4), dtype=torch.long, device=model.device)
    with pytest.raises(RuntimeError, match="attention of layer 0 must be 'sdpa' or 'vrex_retrieval': call prepare"):
        model(input_ids=ids, cache=RetrievalCache())
    prepare(model)
    with pytest.raises(ValueError, match="batch must be 1 with a RetrievalCache, got 2"):
        model(input_ids=ids.expand(2, 4), cache=RetrievalCache())
    with pytest.raises(ValueError, match="attention_mask must have no padding"):
        mask = torch.tensor([[0, 1, 1, 1]], device=model.device)
        model(input_ids=ids, attention_mask=mask, cache=RetrievalCache())
    with pytest.raises(ValueError, match="block must be None for policy mosaic, got 5"):
        model(input_ids=ids, cache=RetrievalCache("mosaic", block=5))
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = prepare(make_model(rope_parameters=dynamic))
    with pytest.raises(ValueError, match="needs a static rotary embedding: rope_type must be default or linear or ll"):
        model(input_ids=ids, cache=RetrievalCache(positions="compact"))
    with pytest.raises(ValueError, match="policy rekv undoes the rotary embedding: rope_type must be default, got 'dy"):
        model(input_ids=ids, cache=RetrievalCache("rekv"))
    sliding = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    model = prepare(make_model("qwen2", **sliding))
    with pytest.raises(ValueError, match="sliding_window must be None with a RetrievalCache, got 8"):
        model(input_ids=ids, cache=RetrievalCache())


def test_without_the_extra_one_line_says_so(monkeypatch):
    import sys

    import sw_model.huggingface

    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("sw_model.huggingface.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="RetrievalCache needs PyTorch and transformers: pip install"):
        sw_model.huggingface.RetrievalCache  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sw_model.huggingface.nothing  # noqa: B018
