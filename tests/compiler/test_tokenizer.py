"""Text that goes in and out of a session."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from compiler.checkpoint import Checkpoint
from compiler.runtime import Limits, compile_model
from compiler.tokenizer import TextTokenizer
from hw.config import Config
from tests.compiler.checkpoints import write_random

BEGIN = 1


@pytest.fixture
def folder(tmp_path, rng):
    """A Llama whose tokenizer has the words w0, w1, .. and begins a text with w1."""
    write_random(tmp_path, "llama", rng)
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(48)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("w1 $A", special_tokens=[("w1", BEGIN)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_text_is_its_token_ids(folder):
    """The first text of a session has the token that begins a text; later ones do not."""
    machine = compile_model(Checkpoint(folder), Config.preset("tiny"), Limits(streams=2, tokens=64))
    text, ids = machine.session(), machine.session()
    text.prompt("w5 w6")
    ids.prompt([BEGIN, 5, 6])
    assert text.position == ids.position == 3
    answer = list(text.ask("w7 unknown", count=3))
    assert answer == list(ids.ask([7, 0], count=3)) and (text.logits == ids.logits).all()
    assert machine.tokenizer.decode(answer) == " ".join(f"w{token}" for token in answer)


def test_text_without_tokens_is_refused(folder):
    session = compile_model(Checkpoint(folder), Config.preset("tiny"), Limits(tokens=64)).session()
    session.prompt("w5")
    with pytest.raises(ValueError, match="tokens must be at least one token ID, got none"):
        session.prompt("")
    assert session.position == 2


def test_missing_or_damaged_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        TextTokenizer(folder)
    (folder / "tokenizer.json").unlink()
    machine = compile_model(Checkpoint(folder), Config.preset("tiny"), Limits(tokens=64))
    assert list(machine.session().ask([3], count=1))
    with pytest.raises(ValueError, match=r"checkpoint '.*': tokenizer\.json is missing"):
        _ = machine.tokenizer
