"""Full attention to a cache of four bits: the baseline Oaken of V-Rex on a core with the KV codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.policies.full import FullPolicy
from golden.decoder_layer import LayerPolicy
from hw.config import Config


@dataclass(frozen=True)
class OakenPolicy(FullPolicy):
    """Full attention to keys and values of four bits, on a core with `kv_bits` = 4.

    Past tokens are read as they are stored; the tokens of a step attend to each other in BF16. The format is that of
    the KV codec (`golden.kv_formats.Affine`), 4.5 bits per element at `paper`, not that of Oaken: there thresholds from
    profiling divide the elements into three groups, and a sparse list of variable length holds the outer and inner
    ones, about 4.9 bits (`golden.oaken`). Its error is 0.79 to 0.88 times that of the codec.

    Source: Oaken (arXiv 2503.18599), with which V-Rex (arXiv 2512.12284) compares itself.
    """

    name: ClassVar[str] = "oaken"

    def core(self, config: Config) -> Config:
        """A core with the KV codec."""
        return config.replace(kv_bits=4)

    def table(self, config: Config) -> LayerPolicy:
        """As full attention."""
        if config.kv_bits != 4:
            raise ValueError(f"kv_bits must be 4 for policy {self.name}, got {config.kv_bits}")
        return super().table(config)
