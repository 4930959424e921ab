"""Random checkpoints from config.json: tensors as in transformers, and values that depend on the seed."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.random_model import write_random_model
from tests.compiler.checkpoints import CONFIGS, config_of, shapes_of


@pytest.mark.parametrize("family", CONFIGS)
def test_tensors_have_the_names_and_shapes_of_transformers(family, tmp_path, rng):
    config = config_of(family)
    write_random_model(tmp_path / "model", config, rng)
    checkpoint, shapes = Checkpoint(tmp_path / "model"), shapes_of(config)
    assert checkpoint.names and all(checkpoint.shape(name) == shapes[name] for name in checkpoint.names)
    assert all(np.any(checkpoint.load(key)) for key in checkpoint.table)


def test_seed_determines_the_weights(tmp_path):
    embeddings = []
    for number, seed in enumerate((1, 1, 2)):
        write_random_model(tmp_path / str(number), config_of("llava"), np.random.default_rng(seed))
        embeddings.append(Checkpoint(tmp_path / str(number)).embedding())
    np.testing.assert_array_equal(embeddings[0], embeddings[1])
    assert np.any(embeddings[0] != embeddings[2])


def test_unsupported_config_is_refused(tmp_path, rng):
    with pytest.raises(ValueError, match=r"^hidden_act in config.json must be one of silu, got .relu.$"):
        write_random_model(tmp_path / "model", config_of("llama", {"hidden_act": "relu"}), rng)
    assert not (tmp_path / "model").exists()
