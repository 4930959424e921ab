"""Shapes, the records of a step, and policies by name or from a file."""

import numpy as np
import pytest

from hw.config import Config
from hw.kv_codec.affine import packed_layout
from sw_model.policies import LLAMA3_8B, POLICIES, Matmul, ModelShape, Step, Work, load

TINY = ModelShape(layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=8)


def test_kv_bytes_of_llama3_8b():
    """Llama-3 8B in BF16: 4 KiB a token and layer, 128 KiB a token."""
    assert LLAMA3_8B.kv_bytes == 4096 and LLAMA3_8B.kv_bytes * LLAMA3_8B.layers == 131072
    assert LLAMA3_8B.group == 4 and LLAMA3_8B.key_dim == 1024


def test_work_sums_operations_and_extents():
    work = Work(0, 0, 0, 1, fetch_bytes=100, fetch_extents=4, matmuls=(Matmul(2, 3, 5), Matmul(1, 1, 1, 7)))
    assert work.predict_flops == 74 and work.extent_bytes == 25
    assert Work(0, 0, 0, 1).extent_bytes == 0
    with pytest.raises(ValueError, match="schedule must be one of"):
        Work(0, 0, 0, 1, schedule="later")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"new_tokens": 0}, "new_tokens must be at least 1, got 0"),
        ({"past_tokens": -1}, "past_tokens must be at least 0, got -1"),
        ({"stage": "audio"}, "stage must be one of frame, text, got 'audio'"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"ratio": 1.5}, "ratio must be finite and between 0 and 1, got 1.5"),
        ({"resident_tokens": -5}, "resident_tokens must be at least 0, got -5"),
        ({"kv_bits": 0}, "kv_bits must be finite and between 1 and 16, got 0"),
    ],
)
def test_invalid_steps_raise_value_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        Step(**{"new_tokens": 1, "past_tokens": 5, "stage": "frame", **arguments})


def test_invalid_shape_raises_value_error():
    with pytest.raises(ValueError, match="q_heads must be a multiple of kv_heads = 3, got 4"):
        ModelShape(1, 8, 4, 3, 8)


def test_full_attends_to_all_tokens_and_fetches_the_offloaded_ones(rng):
    policy = load("full")(TINY)
    for _ in range(3):
        policy.append(1, rng.standard_normal((5, 2, 8)), rng.standard_normal((5, 2, 8)))
        got = policy.select(1, rng.standard_normal((5, 4, 8)), "frame")
    assert [t.tolist() for t in got.tokens] == [list(range(10))] * 2
    work = policy.account(Step(10, 40960, "frame", batch=4))
    assert work.fetch_bytes == 4 * 36864 * 4096 and work.attended_tokens == 40960
    assert policy.account(Step(10, 4000, "frame")).fetch_bytes == 0 == policy.account(Step(10, 0, "frame")).fetch_bytes
    assert work.attend_read_bytes == 4 * 40960 * 4096 and work.append_bytes == 4 * 10 * 4096


@pytest.mark.parametrize("name", POLICIES)
def test_bytes_of_a_quantised_cache(name):
    """Cache and link move the bytes of encoded words; the prediction does not change."""
    config = Config.preset("paper")
    words = LLAMA3_8B.key_dim * 2 // config.dpe_inputs  # of one token, keys and values
    token_bytes = words * packed_layout(config.dpe_inputs, 4).size / 8
    bits = 8 * token_bytes / (2 * LLAMA3_8B.key_dim)
    assert bits == 4.5
    policy = load(name)(LLAMA3_8B)
    plain, coded = (policy.account(Step(10, 40960, "frame", resident_tokens=0, kv_bits=b)) for b in (16, bits))
    if name == "oaken":  # a format of its own
        assert coded == plain
        return
    assert coded.append_bytes == coded.processed_tokens * token_bytes
    assert coded.fetch_bytes == pytest.approx(plain.fetch_bytes * bits / 16, rel=1e-12)
    saved = plain.fetch_bytes - coded.fetch_bytes  # without a resident token all attended tokens are fetched
    assert plain.attend_read_bytes - coded.attend_read_bytes == pytest.approx(saved, rel=1e-12)
    for field in ("attended_tokens", "fetch_extents", "predict_read_bytes", "matmuls", "processed_tokens"):
        assert getattr(coded, field) == getattr(plain, field)


def test_invalid_tensors_raise_value_error(rng):
    policy = load("full")(TINY)
    good = rng.standard_normal((3, 2, 8))
    for keys, values, message in (
        (good[:, :1], good, r"keys must have shape \(any, 2, 8\), got \(3, 1, 8\)"),
        (good, good[:2], r"values must have shape \(3, 2, 8\), got \(2, 2, 8\)"),
        (np.full((3, 2, 8), np.nan), good, "keys must be finite, got nan"),
        (good[:0], good[:0], "keys must hold at least one token, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.append(0, keys, values)
    with pytest.raises(ValueError, match="layer must be between 0 and 1, got 2"):
        policy.append(2, good, good)
    with pytest.raises(ValueError, match="keys of layer 0 must be appended before"):
        policy.select(0, good, "frame")
    policy.append(0, good, good)
    with pytest.raises(ValueError, match=r"queries must have shape \(3, 4, 8\)"):
        policy.select(0, rng.standard_normal((2, 4, 8)), "frame")


def test_unknown_policy_or_invalid_file_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match=f"policy must be one of {', '.join(POLICIES)} or a .py file, got 'magic'"):
        load("magic")
    with pytest.raises(ValueError, match="policy file must exist"):
        load(str(tmp_path / "absent.py"))
    own = "from sw_model.policies import Policy\nclass Own(Policy):\n    "
    for text, message in (
        ("1 / 0", "must run, got ZeroDivisionError"),
        ("raise SystemExit(0)", "must run, got SystemExit: 0"),
        ("x = 1", "subclass of Policy, got 0"),
        (f"{own}pass", "Own must define account, select, name"),
        (f"{own}name = 3\n    account = select = len", "Own must define name"),
    ):
        file = tmp_path / "mine.py"
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load(str(file))
