"""Head pages of encoded keys and values, for the units between pages and words."""

from golden.page_layout import PageLayout as GoldenLayout
from hw.config import Config
from hw.kv_codec.page_layout import PageLayout
from tests.hw.kv_codec.codec_cases import words


def layouts(preset, kv_bits):
    """Layouts of a preset with encoded pages: of the hardware and of the golden model."""
    c = Config.preset(preset)
    golden = GoldenLayout(c.head_dim, c.page_tokens, c.dpe_inputs, kv_bits)
    return PageLayout(head_dim=c.head_dim, page_tokens=c.page_tokens, word=16 * c.dpe_inputs, kv_bits=kv_bits), golden


def keys(rng, golden, count):
    """`count` keys of random, equal, subnormal and special elements, uint16 (count, head_dim)."""
    rows = words(rng, golden.lanes, count)
    per_key = golden.head_dim // golden.lanes
    return rows[: count * per_key].reshape(count, golden.head_dim)


def numbers(stored, nbytes):
    """Memory words of bytes as integers."""
    data = stored.tobytes()
    return [int.from_bytes(data[at : at + nbytes], "little") for at in range(0, len(data), nbytes)]
