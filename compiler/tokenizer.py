"""Tokenizer of a checkpoint: text to token IDs and back, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"


class TextTokenizer:
    """The tokenizer that a checkpoint folder has in tokenizer.json. Raises ValueError if it is missing or not valid."""

    def __init__(self, folder: Path):
        path = folder / TOKENIZER
        if not path.is_file():
            raise ValueError(f"checkpoint {str(folder)!r}: {TOKENIZER} is missing")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"{path}: {error}") from None

    def encode(self, text: str, *, begin: bool) -> list[int]:
        """Token IDs of a text. `begin`: it is the first one of a session, with the tokens that begin a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=begin).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token IDs."""
        text: str = self._tokenizer.decode(list(tokens))
        return text
