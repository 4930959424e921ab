"""QuickCodec compared with a plain decoding loop on streams of many kinds, and its cleanup after errors."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from golden import quickvideo
from sw_model.media import clip, quickcodec, video
from sw_model.media.quickcodec import decoding
from sw_model.media.quickcodec import plan as planning
from sw_model.media.quickcodec.plan import Plan, Run
from sw_model.media.video import VideoError

ROOT = Path(__file__).resolve().parents[3]


def plain(path):
    """All frames and stamps, decoded by a minimal PyAV loop."""
    with av.open(str(path)) as container:
        decoded = list(container.decode(video=0))
        frames = [f.reformat(format="rgb24", interpolation="AREA").to_ndarray() for f in decoded]
        return np.stack(frames), [f.pts for f in decoded]


def frame_memory(pid="self"):
    """Open frame memories of a process."""
    links = (os.path.realpath(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return [link for link in links if "memfd:frames" in link]


BUSY = (1280, 960)  # scaling up keeps the workers at work for a while


@pytest.fixture
def nothing_left():
    """Fails the test if a process or a frame memory remains after it."""
    yield
    assert active_children() == []
    assert frame_memory() == []


def packets_of(path):
    with av.open(str(path)) as container:
        return [(p.pts, p.is_keyframe) for p in container.demux(video=0) if p.size]


def uneven(pictures, path):
    """Variable frame rate: gaps of 1, 2, 3, ... milliseconds and more, from an odd start."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 96, 64, "yuv420p", 8
        stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        pts = 777
        for i, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = pts, Fraction(1, 1000)
            pts += 7 + 13 * (i % 5)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


B_FRAMES = {"bf": "3", "x264-params": "b-adapt=0"}
OPEN = {"bf": "3", "x264-params": "open-gop=1:b-adapt=0"}
KINDS = {
    "closed": lambda p, f: clip.encode(p, f / "a.mp4", gop=6),
    "b-frames": lambda p, f: clip.encode(p, f / "a.mp4", gop=6, options=B_FRAMES),
    "open-mp4": lambda p, f: clip.encode(p, f / "a.mp4", gop=8, options=OPEN),
    "open-mkv": lambda p, f: clip.encode(p, f / "a.mkv", gop=8, options=OPEN),
    "transport": lambda p, f: clip.encode(p, f / "a.ts", gop=6, options=B_FRAMES),
    "one-keyframe": lambda p, f: clip.encode(p, f / "a.mp4", gop=1000),
    "two-keyframes": lambda p, f: clip.encode(p, f / "a.mp4", gop=24),
    "uneven": lambda p, f: uneven(p, f / "a.mkv"),
    "mjpeg-avi": lambda p, f: clip.encode(p, f / "a.avi", codec="mjpeg", options={"strict": "-2"}),
    "mpeg4-avi": lambda p, f: clip.encode(p, f / "a.avi", codec="mpeg4", gop=6, options={"bf": "2"}),
    "one-frame": lambda p, f: clip.encode(p[:1], f / "a.mp4"),
}


@pytest.fixture(scope="module", params=KINDS)
def stream(request, pictures, tmp_path_factory):
    path = KINDS[request.param](pictures, tmp_path_factory.mktemp(request.param))
    return request.param, path, *plain(path)


@pytest.mark.parametrize("intervals", [1, 3, 64])
def test_one_process_decodes_the_same_frames(stream, intervals, nothing_left):
    kind, path, frames, stamps = stream
    got = quickcodec.decode(path, workers=1, intervals=intervals)
    np.testing.assert_array_equal(got.frames, frames)
    if kind != "mpeg4-avi":  # AVI carries no presentation stamps to compare
        assert got.pts.tolist() == stamps


def test_several_processes_decode_the_same_frames_each_once(stream, nothing_left):
    kind, path, frames, _ = stream
    seen = []
    workers = 3 if kind == "two-keyframes" else 2
    got = quickcodec.decode(path, workers=workers, progress=lambda what, done, total: seen.append((done, total)))
    np.testing.assert_array_equal(got.frames, frames)
    assert seen == [(i + 1, len(frames)) for i in range(len(frames))]


def test_the_streams_are_what_their_names_say(pictures, tmp_path):
    packets_by_kind = {}
    for kind in ("open-mp4", "transport", "one-keyframe", "two-keyframes"):
        (tmp_path / kind).mkdir()
        packets_by_kind[kind] = packets_of(KINDS[kind](pictures, tmp_path / kind))
    keys = [i for i, (_, key) in enumerate(packets_by_kind["open-mp4"]) if key]
    packets = packets_by_kind["open-mp4"]
    assert any(pts < packets[k][0] for k in keys[1:] for pts, _ in packets[k + 1 :]), "leading pictures"
    assert min(pts for pts, _ in packets_by_kind["transport"]) > 0
    assert sum(key for _, key in packets_by_kind["one-keyframe"]) == 1
    assert sum(key for _, key in packets_by_kind["two-keyframes"]) == 2


def test_every_slot_is_written_once(small_video):
    plan = Plan.make(small_video, None, None, None, 3, 64)
    slots = [slot for runs in plan.runs for run in runs for _, slot in run.wanted]
    assert sorted(slots) == list(range(48))
    assert len(plan.runs) == 3 == len([runs for runs in plan.runs if runs])


@settings(derandomize=True, database=None, deadline=None)
@given(
    stamps=st.lists(st.integers(-50, 900), min_size=1, max_size=60, unique=True),
    data=st.data(),
    workers=st.integers(1, 6),
    intervals=st.integers(1, 80),
)
def test_any_stream_is_dealt_whole(stamps, data, workers, intervals):
    """Each wanted frame goes to one worker, decoded from the last keyframe up to it."""
    stamps.sort()
    keys = {0, *data.draw(st.sets(st.integers(0, len(stamps) - 1)))}
    stream = quickvideo.scan([(pts, i in keys) for i, pts in enumerate(stamps)])
    chosen = data.draw(st.lists(st.sampled_from(stamps), min_size=1, unique=True))
    wanted = [(pts, slot) for slot, pts in enumerate(sorted(chosen))]
    assigned = planning._assign(stream, wanted, workers, intervals)
    assert len(assigned) <= workers and all(assigned)
    assert sorted(frame for runs in assigned for run in runs for frame in run.wanted) == wanted
    for run in (run for runs in assigned for run in runs):
        key = max(stamps[i] for i in keys if stamps[i] <= run.wanted[0][0])
        assert run.seek[:1] in ((), (key,)) and (run.seek or key == stamps[0])


# -- which frames


@pytest.mark.parametrize("fps", [1, 3.3, Fraction(10, 3), 10, 50])
def test_frame_rate_as_sequential_sampling(small_video, fps):
    wanted = list(video.sample(video.decode(small_video), fps))
    got = quickcodec.decode(small_video, fps=fps, workers=1, intervals=4)
    np.testing.assert_array_equal(got.frames, np.stack([f.rgb() for f in wanted]))
    assert got.time_s.tolist() == [f.time_s for f in wanted]


def test_frames_at_times(small_video):
    frames, _ = plain(small_video)  # 10 frames per second
    times = [3.19, -1.0, 0.0, 0.1, 0.14, 99.0, 3.1]
    got = quickcodec.decode(small_video, times_s=times, workers=1)
    np.testing.assert_array_equal(got.frames, frames[[0, 1, 31, 47]])


def test_far_apart_frames_skip_what_lies_between(tmp_path, pictures):
    path = clip.encode(pictures, tmp_path / "a.mp4", gop=4)
    plan = Plan.make(path, None, [0.1, 2.1, 2.5, 4.5], None, 1, 1)
    assert [(run.seek[:1], len(run.wanted)) for run in plan.runs[0]] == [
        ((), 1),
        ((packets_of(path)[20][0],), 2),
        ((packets_of(path)[44][0],), 1),
    ]
    got = quickcodec.decode(path, times_s=[0.1, 2.1, 2.5, 4.5], workers=1)
    np.testing.assert_array_equal(got.frames, plain(path)[0][[1, 21, 25, 45]])


def test_scaled_frames(small_video):
    got = quickcodec.decode(small_video, size=(40, 30), fps=2, workers=1)
    wanted = [f.rgb(40, 30) for f in video.sample(video.decode(small_video), 2)]
    np.testing.assert_array_equal(got.frames, np.stack(wanted))


# -- group by group


@pytest.mark.parametrize("workers", [1, 2])
def test_groups_come_in_order_and_whole(small_video, workers, nothing_left):
    frames, _ = plain(small_video)
    got = list(quickcodec.groups(small_video, 9, workers=workers, intervals=4))
    assert [len(group) for group in got] == [9] * 5 + [3]
    np.testing.assert_array_equal(np.concatenate(got), frames)


def test_a_single_worker_decodes_while_groups_are_used(small_video, nothing_left):
    stream = quickcodec.groups(small_video, 4, workers=1)
    next(stream)
    assert len(active_children()) == 1
    stream.close()


def test_giving_up_after_a_group_leaves_nothing(small_video, nothing_left):
    stream = quickcodec.groups(small_video, 4, workers=2)
    assert len(next(stream)) == 4
    stream.close()


# -- files


@pytest.mark.parametrize("workers", [1, 2])
def test_saved_arrays(small_video, tmp_path, workers, nothing_left):
    frames, _ = plain(small_video)
    (tmp_path / "v.npy").write_text("old")
    saved = quickcodec.save(small_video, tmp_path / "v.npy", workers=workers)
    assert (saved.form, saved.width, saved.height, len(saved.pts)) == ("npy", 96, 64, 48)
    assert (saved.stream_frames, saved.processes) == (48, workers)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), frames)
    quickcodec.save(small_video, tmp_path / "new" / "v.raw", workers=workers)
    assert (tmp_path / "new" / "v.raw").read_bytes() == frames.tobytes()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "v.npy", "v.raw"]


def test_saved_pictures(small_video, tmp_path, nothing_left):
    frames, stamps = plain(small_video)
    saved = quickcodec.save(small_video, tmp_path / "pictures", fps=5, workers=2)
    assert list(saved.pts) == stamps[::2] and saved.json()["time_s"] == [i / 5 for i in range(24)]
    about = json.loads((tmp_path / "pictures" / "frames.json").read_text())
    assert about["width"] == 96 and about["height"] == 64 and len(about["frames"]) == 24
    for row in about["frames"]:
        with Image.open(tmp_path / "pictures" / row["file"]) as picture:
            np.testing.assert_array_equal(np.asarray(picture), frames[row["index"]])
        assert row["pts"] == stamps[row["index"]]
    with pytest.raises(ValueError, match="exists already"):
        quickcodec.save(small_video, tmp_path / "pictures")


# -- errors


@pytest.mark.parametrize("form", ["npy", "png"])
def test_a_failure_leaves_no_half_written_result(small_video, tmp_path, form, nothing_left):
    def stop(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quickcodec.save(small_video, tmp_path / "out", form=form, workers=2, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_worker_ends_everything(small_video, nothing_left):
    def kill(what, done, total):
        if done == 1:
            for child in active_children():
                os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ChildProcessError, match=r"decoding process \d+ ended early, exit code -9"):
        quickcodec.decode(small_video, workers=2, size=BUSY, progress=kill)


def test_full_memory_and_full_disk_are_told_in_advance(small_video, tmp_path, monkeypatch, nothing_left):
    with monkeypatch.context() as patch:
        patch.setattr(quickcodec.target, "free_memory_bytes", lambda: 10)
        with pytest.raises(OSError, match="free memory must be at least 884736 bytes for the frames, got 10"):
            quickcodec.decode(small_video, workers=1)

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"free disk space must be at least 884736 bytes for the frames, got \d+"):
        quickcodec.save(small_video, tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_file_target_without_reservation_has_full_size(number, small_video, tmp_path, monkeypatch):
    """The file system cannot reserve space."""

    def unsupported(fd, offset, size):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    plan = Plan.make(small_video, None, None, None, 1, 1)
    target = quickcodec.target.frame_file(plan, tmp_path / "frames", header=False)
    assert target.path.stat().st_size == np.prod(plan.shape)


def test_file_target_reports_other_reservation_errors_as_they_are(small_video, tmp_path, monkeypatch):
    def broken(fd, offset, size):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    plan = Plan.make(small_video, None, None, None, 1, 1)
    with pytest.raises(OSError, match=r"Input/output error.*frames") as caught:
        quickcodec.target.frame_file(plan, tmp_path / "frames", header=False)
    assert caught.value.errno == errno.EIO


def test_a_worker_that_cannot_write_says_why(small_video, tmp_path, monkeypatch, nothing_left):
    real = quickcodec.png_folder

    def gone(plan, folder):
        target = real(plan, folder)
        shutil.rmtree(folder)
        return target

    monkeypatch.setattr(quickcodec, "png_folder", gone)
    with pytest.raises(OSError, match=r"No such file or directory"):
        quickcodec.save(small_video, tmp_path / "out", workers=2)
    assert list(tmp_path.iterdir()) == []


def test_an_irregular_stream_is_decoded_in_one_pass(small_video, monkeypatch):
    frames, _ = plain(small_video)

    def refuse(*args):
        raise decoding._Irregular
        yield

    monkeypatch.setattr(decoding, "_images", refuse)
    np.testing.assert_array_equal(quickcodec.decode(small_video, workers=1, fps=5).frames, frames[::2])
    monkeypatch.setattr(decoding, "_parallel", refuse)
    with pytest.raises(VideoError, match="can only be decoded in one pass"):
        list(quickcodec.groups(small_video, workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_that_starts_between_keyframes(tmp_path, pictures, workers):
    source_path = clip.encode(pictures, tmp_path / "a.mkv", gop=16)
    with av.open(str(source_path)) as source, av.open(str(tmp_path / "cut.ts"), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for i, packet in enumerate(source.demux(video=0)):
            if packet.size and i >= 5:
                packet.stream = stream
                out.mux(packet)
    assert not packets_of(tmp_path / "cut.ts")[0][1]
    frames, stamps = plain(tmp_path / "cut.ts")
    got = quickcodec.decode(tmp_path / "cut.ts", workers=workers)
    np.testing.assert_array_equal(got.frames, frames)
    assert got.pts.tolist() == stamps and len(stamps) == 32


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_files(tmp_path, pictures, share, nothing_left):
    content = clip.encode(pictures, tmp_path / "a.mkv", gop=16).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(content[: int(share * len(content))])
    with pytest.raises(VideoError, match="truncated"):
        quickcodec.decode(tmp_path / "cut.mkv", workers=2)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"intervals": -1}, "intervals must be at least 1, got -1"),
        ({"size": (0, 4)}, r"size must be \(width, height\), both at least 1, got \(0, 4\)"),
        ({"fps": 0}, "fps must be a positive number or None, got 0"),
        ({"times_s": []}, "times_s must be a list of finite seconds"),
        ({"times_s": [float("nan")]}, "times_s must be a list of finite seconds"),
        ({"fps": 1, "times_s": [0]}, "fps and times_s exclude each other"),
    ],
)
def test_bad_arguments(small_video, arguments, words):
    with pytest.raises(ValueError, match=words):
        quickcodec.decode(small_video, **arguments)


def test_bad_files(tmp_path, small_video):
    (tmp_path / "text.mp4").write_text("no video")
    for name, words in (("none.mp4", "no such file"), ("text.mp4", "not a whole video")):
        with pytest.raises(VideoError, match=words):
            quickcodec.decode(tmp_path / name)
    with pytest.raises(ValueError, match="form must be one of npy, png, raw, got 'mp4'"):
        quickcodec.save(small_video, tmp_path / "out.mp4")
    with pytest.raises(ValueError, match="group_frames must be at least 1, got 0"):
        quickcodec.groups(small_video, 0)


SCRIPT = """
import sys, time
from sw_model.media import quickcodec
def progress(what, done, total):
    print(done, flush=True)
    time.sleep(0.05)
if __name__ == "__main__":
    quickcodec.decode(sys.argv[1], workers=2, size=(1280, 960), progress=progress)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interrupted_program_leaves_nothing(small_video, tmp_path, sent, nothing_left):
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, str(script), str(small_video)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with program:
        assert program.stdout.readline() == b"1\n"
        assert frame_memory(program.pid)
        if sent == signal.SIGINT:
            os.killpg(program.pid, sent)  # as a terminal does
        else:
            program.kill()
        program.stdout.read()
        assert program.wait() == -sent
    for _ in range(200):
        if not _alive(program.pid):  # the memory has no name and is freed with the last process
            return
        time.sleep(0.05)
    pytest.fail("a process still runs")


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_was_written_before_an_irregularity_is_told_once(small_video, tmp_path, monkeypatch):
    plan = Plan.make(small_video, None, None, None, 1, 1)
    target = quickcodec.target.frame_file(plan, tmp_path / "frames", header=False)

    def some(plan, target):
        yield 3
        raise decoding._Irregular

    monkeypatch.setattr(decoding, "_in_process", some)
    assert sorted(decoding.write_frames(plan, target)) == list(range(48))
    fewer = replace(plan, runs=(), frames=49)
    with pytest.raises(VideoError, match="damaged: 49 frames announced, 48 decoded"):
        list(decoding.write_frames(fewer, target))


def images(monkeypatch, stamps):
    """Stamps that `_images` yields for pictures with these stamps."""
    pictures = [av.VideoFrame(16, 16, "rgb24") for _ in stamps]
    for picture, stamp in zip(pictures, stamps, strict=True):
        picture.pts = stamp
    packet = SimpleNamespace(decode=lambda: pictures)
    monkeypatch.setattr(decoding, "_packets", lambda *arguments: iter([packet]))
    return [stamp for stamp, _ in decoding._images(None, None, (5,))]


@pytest.mark.parametrize("stamps", [[5, 5], [5, None], [7, 6]], ids=str)
def test_pictures_out_of_order_are_an_irregularity(stamps, monkeypatch):
    assert images(monkeypatch, [3, 5, 6]) == [5, 6]
    with pytest.raises(decoding._Irregular):
        images(monkeypatch, stamps)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_frame_that_does_not_come_is_an_irregularity(damaged, small_video, tmp_path, monkeypatch):
    """The error is raised in the decoding process, sent as a message and raised in the parent."""
    path, runs = small_video, (Run((), ((10**9, 0),)),)
    if damaged:
        content = bytearray(small_video.read_bytes())
        content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
        path = tmp_path / "damaged.mp4"
        path.write_bytes(content)
    with pytest.raises(decoding._Irregular):
        list(decoding._decode_runs(path, runs, (96, 64), 1, lambda slot, frame: None))
    sent = []
    monkeypatch.setattr(decoding.signal, "signal", lambda *arguments: None)
    target = SimpleNamespace(open_writer=lambda: nullcontext(lambda slot, frame: None))
    decoding._run_worker(path, runs, (96, 64), target, SimpleNamespace(send=sent.append))
    with pytest.raises(decoding._Irregular):
        list(decoding._receive(SimpleNamespace(recv=lambda: sent[0]), {}))


def test_a_decoder_that_gives_up_is_an_irregularity(small_video, monkeypatch):
    def images(*arguments):
        raise av.error.InvalidDataError(1, "damaged")

    monkeypatch.setattr(decoding, "_images", images)
    with pytest.raises(decoding._Irregular):
        list(decoding._decode_runs(small_video, (Run((), ((0, 0),)),), (96, 64), 1, lambda slot, frame: None))


def test_a_full_disk_is_told_to_the_parent(small_video, monkeypatch):
    def full(slot, frame):
        raise OSError(errno.ENOSPC, "No space left on device")

    sent, target = [], SimpleNamespace(open_writer=lambda: nullcontext(full))
    monkeypatch.setattr(decoding.signal, "signal", lambda *arguments: None)
    decoding._run_worker(small_video, (Run((), ((0, 0),)),), (96, 64), target, SimpleNamespace(send=sent.append))
    assert [type(end) for end in sent] == [OSError] and sent[0].errno == errno.ENOSPC


def test_packets_from_the_start_and_from_a_keyframe(small_video):
    container, stream = video.open_video(small_video)
    with container:
        stamps = [packet.pts for packet in decoding._packets(container, stream, ()) if packet.size]
        again = [packet.pts for packet in decoding._packets(container, stream, (stamps[16],)) if packet.size]
        assert len(stamps) == 48 and stamps[16:] == again
        with pytest.raises(decoding._Irregular):  # no keyframe is so early
            list(decoding._packets(container, stream, (-(10**6), -(10**6))))


def test_processes_that_cannot_be_started(small_video, monkeypatch, nothing_left):
    def start(process):
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(decoding.SpawnProcess, "start", start)
    with pytest.raises(OSError, match="no more processes"):
        quickcodec.decode(small_video, workers=2)


def test_a_dead_process_is_no_fault_of_the_disk(small_video, tmp_path, monkeypatch):
    def die(plan, target):
        raise ChildProcessError("decoding process 7 ended early, exit code -9")
        yield

    monkeypatch.setattr(quickcodec, "write_frames", die)
    with pytest.raises(ChildProcessError, match="decoding process 7 ended early"):
        quickcodec.save(small_video, tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_reserves_no_disk(small_video, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    quickcodec.save(small_video, tmp_path / "v.npy", workers=1)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), plain(small_video)[0])


def test_repeated_stamps_and_packets_that_cannot_be_read(small_video, monkeypatch):
    def repeated(packets):
        raise ValueError("stamps repeat")

    with monkeypatch.context() as patch:
        patch.setattr(planning.quickvideo, "scan", repeated)
        plan = Plan.make(small_video, None, None, None, 2, None)
        assert plan.runs == () and plan.frames == 48
    opened = video.open_video

    def broken(path):
        container, stream = opened(path)
        demux = container.demux

        class Broken:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                container.close()

            def __getattr__(self, name):
                return getattr(container, name)

            def demux(self, *arguments):
                for number, packet in enumerate(demux(*arguments)):
                    if number == 3:
                        raise OSError("input/output error")
                    yield packet

        return Broken(), stream

    monkeypatch.setattr(planning.video, "open_video", broken)
    with pytest.raises(VideoError, match=r"truncated or damaged after packet 2 \(input/output error\)"):
        planning._scan(small_video)
