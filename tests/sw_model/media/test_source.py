import numpy as np

from sw_model.media.source import Options, first_keys, open_source


def test_first_keys_are_those_of_the_chunks():
    options = Options(frames=20)
    want = np.concatenate([chunk.k[0].reshape(chunk.tokens, -1) for chunk in open_source("generator", options).chunks])
    assert np.array_equal(first_keys("generator", 25, options), want[:25])
    assert len(first_keys("generator", 10**6, options)) == len(want)
