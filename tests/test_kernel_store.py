"""Files of compiled kernels: whole or ignored, whoever writes them, and never of other sources."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flash_numba import kernel_store

PACKAGE = Path(kernel_store.__file__).parent
KEY = kernel_store.key_of("kernel", "what it is")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path / "cache"))
    place = kernel_store.folder()
    assert place is not None
    return place


def test_what_is_saved_is_loaded(place):
    assert kernel_store.load_kernel(KEY) is None
    kernel_store.save_kernel(KEY, b"\x7fELF\n\x00code", "name_of_kernel")
    assert kernel_store.load_kernel(KEY) == (b"\x7fELF\n\x00code", "name_of_kernel")
    kernel_store.save_json("plan-1", {"steps": [[1, "two", None]]})
    assert kernel_store.load_json("plan-1") == {"steps": [[1, "two", None]]}
    assert sorted(path.name for path in place.iterdir()) == sorted([KEY, "plan-1"])


def test_keys_tell_kinds_and_contents_apart():
    keys = {kernel_store.key_of(kind, what) for kind in ("kernel", "plan") for what in ("a", "b")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: bytes([content[0] ^ 1]) + content[1:],
    ],
    ids=["empty", "digest-only", "cut", "flipped", "other-digest"],
)
def test_a_damaged_file_is_ignored_and_written_anew(damage, place):
    kernel_store.save_kernel(KEY, b"code", "name")
    (place / KEY).write_bytes(damage((place / KEY).read_bytes()))
    assert kernel_store.load_kernel(KEY) is None
    kernel_store.save_kernel(KEY, b"code", "name")
    assert kernel_store.load_kernel(KEY) == (b"code", "name")


def test_it_can_be_turned_off(monkeypatch, tmp_path):
    monkeypatch.setenv(kernel_store.VARIABLE, "0")
    monkeypatch.chdir(tmp_path)
    kernel_store.save_kernel(KEY, b"code", "name")
    assert kernel_store.load_kernel(KEY) is None
    assert not list(tmp_path.iterdir())


def test_it_lies_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(kernel_store.VARIABLE, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = kernel_store.folder()
    assert place is not None
    assert "flash_numba" in place.parent.parts
    if sys.platform == "linux":
        assert place.parent == tmp_path / "flash_numba"


def test_a_disk_that_takes_nothing_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv(kernel_store.VARIABLE, str(blocked))
    kernel_store.save_kernel(KEY, b"code", "name")
    assert kernel_store.load_kernel(KEY) is None


def test_nothing_is_left_of_a_write_that_fails(place, monkeypatch):
    def fails(*paths):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fails)
    kernel_store.save_kernel(KEY, b"code", "name")
    assert list(place.iterdir()) == []


def test_few_versions_are_kept(place):
    for number in range(kernel_store.KEPT + 3):
        old = place.parent / f"kernels-{number:024}"
        old.mkdir(parents=True)
        (old / KEY).write_bytes(b"old")
        os.utime(old, (number, number))
    other = place.parent / "not-ours"
    other.mkdir()
    kernel_store.save_kernel(KEY, b"code", "name")
    kept = {path.name for path in place.parent.glob("kernels-*")}
    newest = {f"kernels-{number:024}" for number in range(3, kernel_store.KEPT + 3)}
    assert kept == newest | {place.name}
    assert other.is_dir()


def write_many(number):
    """Run in a process of its own."""
    for _ in range(60):
        kernel_store.save_kernel(KEY, bytes([number]) * 200_000, "name")


def test_processes_that_write_at_once_leave_whole_files(place):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    found = set()
    while any(writer.is_alive() for writer in writers):
        if (place / KEY).exists():
            stored = kernel_store.load_kernel(KEY)
            assert stored is not None, "a file was seen that is not whole"
            found.add(stored[0][:1])
            assert stored[0] == found.pop() * 200_000
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [path.name for path in place.iterdir()] == [KEY]


def compile_alone(number):
    """Run in a process of its own: what `launch` does, with half a second of work."""
    if kernel_store.load_kernel(KEY) is None:
        with kernel_store.alone(KEY):
            if kernel_store.load_kernel(KEY) is None:
                time.sleep(0.5)
                kernel_store.save_json(f"compiled-by-{number}", number)
                kernel_store.save_kernel(KEY, b"code", "name")


def test_processes_that_want_one_kernel_at_once_compile_it_once(place):
    pytest.importorskip("fcntl")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_alone, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(list(place.glob("compiled-by-*"))) == 1
    assert not list(place.glob("lock-*"))


def test_a_compilation_that_fails_lets_the_next_one_in(place):
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), kernel_store.alone(KEY):
            raise ValueError("no")
    assert not list(place.glob("lock-*"))


def environment_of(folder, **variables) -> str:
    code = "from flash_numba.kernel_store import environment; print(environment())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return run.stdout


def test_other_sources_and_settings_have_files_of_their_own(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    first = environment_of(tmp_path)
    assert environment_of(tmp_path) == first
    assert environment_of(tmp_path, NUMBA_OPT="1") != first
    source = tmp_path / PACKAGE.name / "device" / "online_softmax.py"
    source.write_text(source.read_text() + "\n")
    second = environment_of(tmp_path)
    assert second != first
    source.rename(source.with_name("other.py"))
    assert environment_of(tmp_path) not in (first, second)


def test_other_versions_have_files_of_their_own(monkeypatch):
    uncached = kernel_store.environment.__wrapped__
    first = uncached()
    assert uncached() == first == kernel_store.environment()
    monkeypatch.setattr(kernel_store, "_version", lambda package: f"{package} 99")
    assert uncached() != first
