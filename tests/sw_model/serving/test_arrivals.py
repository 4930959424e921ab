"""Arrivals: rates, jitter, independence of streams, trace files."""

import numpy as np
import pytest

from sw_model.serving.arrivals import arrivals_of, generate
from sw_model.serving.parameters import FRAME, QUESTION, Serving

HEAD = "time_s,stream,kind,answer_tokens\n"


def frames(arrivals, stream):
    return arrivals.time_ps[(arrivals.stream == stream) & (arrivals.kind == FRAME)] / 1e12


def test_periodic_frames_keep_their_period():
    arrivals = generate(Serving(streams=3, fps=4, seconds=20, jitter=0.2, questions_per_minute=0))
    assert np.all(np.diff(arrivals.time_ps) >= 0) and np.all(arrivals.kind == FRAME)
    for stream in range(3):
        times = frames(arrivals, stream)
        late = (times - times[0]) / 0.25 - np.arange(80)
        assert len(times) == 80 and np.ptp(late) <= 0.2 and np.ptp(late) > 0.1
    assert len({round(frames(arrivals, s)[0] % 0.25, 6) for s in range(3)}) == 3  # different phases


def test_no_jitter():
    times = frames(generate(Serving(streams=1, fps=4, seconds=20, jitter=0)), 0)
    assert np.allclose(np.diff(times), 0.25, atol=1e-9)


def test_poisson_frames_have_exponential_gaps():
    gaps = np.diff(frames(generate(Serving(streams=1, fps=50, seconds=200, arrivals="poisson")), 0))
    assert abs(gaps.mean() * 50 - 1) < 0.03 and abs(gaps.std() * 50 - 1) < 0.05


def test_questions_and_answers():
    serving = Serving(streams=50, seconds=120, questions_per_minute=5, answer_tokens=20)
    arrivals = generate(serving)
    answers = arrivals.answer_tokens[arrivals.kind == QUESTION]
    assert abs(len(answers) / 500 - 1) < 0.1 and answers.min() >= 1 and abs(answers.mean() / 20 - 1) < 0.1
    assert np.all(arrivals.answer_tokens[arrivals.kind == FRAME] == 0)
    fixed = generate(Serving(streams=2, questions_per_minute=9, answers="fixed", answer_tokens=7))
    assert set(fixed.answer_tokens[fixed.kind == QUESTION]) == {7}


def test_more_streams_do_not_change_the_first_ones():
    few, many = generate(Serving(streams=2)), generate(Serving(streams=5))
    assert all(np.array_equal(frames(few, s), frames(many, s)) for s in range(2))
    assert not np.array_equal(frames(generate(Serving(streams=2, seed=1)), 0), frames(few, 0))


def test_growth_of_contexts(tmp_path):
    (tmp_path / "t.csv").write_text(HEAD + "0.5,1,question,4\n0.25,0,frame,\n0.5,1,frame,\n1e0,1,frame,0\n")
    arrivals = arrivals_of(Serving(trace=str(tmp_path / "t.csv")))
    assert arrivals.streams == 2 and arrivals.time_ps.tolist() == [25 * 10**10, 5 * 10**11, 5 * 10**11, 10**12]
    assert arrivals.kind.tolist() == [FRAME, FRAME, QUESTION, FRAME] and arrivals.frames_of().tolist() == [1, 2]
    assert arrivals.tokens_of(10, 25).tolist() == [10, 20 + 25 + 3]
    assert arrivals_of(Serving(streams=1, trace=str(tmp_path / "t.csv"))).streams == 1
    part, at = arrivals.of_streams(np.array([1]))
    assert part.streams == 1 and part.stream.tolist() == [0, 0, 0] and at.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "columns must be time_s,stream,kind,answer_tokens, got a,b"),
        ("", "columns must be time_s,stream,kind,answer_tokens, got $"),
        (HEAD + "1,0,frame,\n1,0,picture,\n", "line 3: kind must be frame or question, got 'picture'"),
        (HEAD + "-1,0,frame,\n", "line 2: time_s must be 0 to 1000000, got '-1'"),
        (HEAD + "nan,0,frame,\n", "line 2: time_s must be 0 to 1000000, got 'nan'"),
        (HEAD + "1,x,frame,\n", "line 2: stream must be an integer of at least 0, got 'x'"),
        (HEAD + "1,-1,frame,\n", "line 2: stream must be an integer of at least 0, got '-1'"),
        (
            HEAD + "1,0,question,\n",
            "answer_tokens must be at least 1 for a question, empty for a frame, got '0'",
        ),
        (HEAD + "1,0,frame,3\n", "line 2: answer_tokens must be at least 1 for a question, empty for a frame, got '3'"),
        (HEAD + "1,0\n", "line 2: kind must be frame or question, got None"),
        (HEAD + "1,9,frame,\n", "must have a request of a stream below 4, got none"),
    ],
)
def test_bad_traces(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=f"trace '.*t.csv'.*{message}"):
        arrivals_of(Serving(trace=str(tmp_path / "t.csv")))


def test_missing_trace():
    with pytest.raises(ValueError, match=r"trace 'none\.csv' must be a CSV file, got No such file or directory"):
        arrivals_of(Serving(trace="none.csv"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"streams": 0}, "serve.streams must be between 1 and 100000, got 0"),
        ({"fps": 0}, "serve.fps must be finite and between 0.001 and"),
        ({"fps": "x"}, "serve.fps must be a number, got 'x'"),
        ({"jitter": 2}, "serve.jitter must be"),
        ({"arrivals": "bursts"}, "serve.arrivals must be one of periodic, poisson, got 'bursts'"),
        ({"priority": "none"}, "serve.priority must be one of answers, frames, oldest, got 'none'"),
        ({"trace": 3}, "serve.trace must be a path, got 3"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(ValueError, match=message):
        Serving(**values)
