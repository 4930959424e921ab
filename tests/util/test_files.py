from pathlib import Path

import pytest

from util import files


def test_write_all_writes_all_or_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(OSError):
        files.write_all(tmp_path, {"a.txt": "new", "missing/b.txt": "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
    files.write_all(tmp_path, {"a.txt": "new", "b.txt": "too"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_unwritable_folder_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        files.write(tmp_path / "file" / "a.txt", "text")


def test_digest_depends_on_text_boundaries():
    assert files.digest("ab", "c") != files.digest("a", "bc")


def test_endless_file_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        files.read_text(Path("/dev/zero"))


def test_version_has_three_numbers():
    assert files.version().count(".") == 2


def test_no_revision_outside_a_repository(tmp_path):
    assert files.git_revision(tmp_path) is None
