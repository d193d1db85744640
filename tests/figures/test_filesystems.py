"""Fresh filesystems for benchmarks: what they are, and that nothing is left of them, whatever happens."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cairn_bench.shared import filesystems
from cairn_bench.shared.machine import mounted_at, words

SMALL = filesystems.LEAST_BYTES
KINDS = ("ext4", "xfs")
HOLD = """
import sys
from cairn_bench.shared import filesystems
with filesystems.fresh("ext4", sys.argv[1], 0) as where:
    print(where, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """This machine can make them."""
    directory = tmp_path_factory.mktemp("probe")
    try:
        for kind in KINDS:
            with filesystems.fresh(kind, str(directory), SMALL):
                pass
    except filesystems.Unavailable as reason:
        pytest.skip(str(reason))


def loops(directory: Path) -> list[str]:
    """The loop devices whose files are in the directory, deleted ones included."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += [file.parts[3]] if file.read_text().startswith(f"{directory}/") else []
        except OSError:  # It has just ended.
            continue
    return found


def left(directory: Path) -> list[str]:
    """Everything that is left of fresh filesystems in the directory."""
    mounted = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {directory}/" in line]
    return mounted + loops(directory) + sorted(path.name for path in directory.iterdir())


def free(directory: Path) -> int:
    return os.statvfs(directory).f_bfree * os.statvfs(directory).f_frsize


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_filesystem_has_a_journal_and_is_on_a_loop_device(tmp_path: Path, kind: str) -> None:
    with filesystems.fresh(kind, str(tmp_path), SMALL) as where:
        Path(where, "file").write_bytes(bytes(100_000))
        os.sync()
        said, (name, device) = words(where), mounted_at(where)
        direct = Path(f"/sys/block/{device}/loop/dio").read_text()
        room = free(Path(where))

    assert name == kind and said.startswith(f"{kind} with a journal") and ", on a loop device in a file on " in said
    assert direct == "1\n" and room > 0.7 * SMALL
    assert left(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_an_exception_within_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), filesystems.fresh("ext4", str(tmp_path), SMALL) as where:
        assert len(loops(tmp_path)) == 1
        Path(where, "file").write_bytes(b"1")
        raise ZeroDivisionError

    assert left(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_an_interrupt_while_it_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(file: int, size: int) -> None:
        assert len(loops(tmp_path)) == 1
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(filesystems, "_write_again", interrupted)
    with pytest.raises(KeyboardInterrupt), filesystems.fresh("xfs", str(tmp_path), SMALL):
        pytest.fail("it was not interrupted")

    assert left(tmp_path) == []


def interrupting(call: Callable[..., object]) -> Callable[..., object]:
    """The same, with a SIGINT at its end."""

    def interrupted(*arguments: object, **options: object) -> object:
        result = call(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    return interrupted


@pytest.mark.usefixtures("mounts")
def test_an_interrupt_before_its_directory_is_known_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", interrupting(tempfile.mkdtemp))

    with pytest.raises(KeyboardInterrupt), filesystems.fresh("ext4", str(tmp_path), SMALL):
        pytest.fail("it was not interrupted")

    assert left(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_an_interrupt_before_its_mount_is_known_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        mount = staticmethod(interrupting(filesystems.libc.mount))

        def __getattr__(self, name: str) -> object:
            return getattr(libc, name)

    libc = filesystems.libc
    filesystems._own_mounts()
    monkeypatch.setattr(filesystems, "libc", Library())

    with pytest.raises(KeyboardInterrupt), filesystems.fresh("ext4", str(tmp_path), SMALL):
        pytest.fail("it was not interrupted")

    assert left(tmp_path) == []


@pytest.fixture
def holder() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("mounts")
def test_the_end_waits_for_a_process_that_still_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: list[subprocess.Popen[bytes]]
) -> None:
    class Ending:
        """The process ends only once its end is waited for."""

        def __init__(self) -> None:
            self.poll_for = poll()
            self.register = self.poll_for.register

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            assert len(loops(tmp_path)) == 1
            holder[0].kill()
            return self.poll_for.poll(milliseconds)

    poll = select.poll
    with filesystems.fresh("xfs", str(tmp_path), SMALL) as where:
        with open(Path(where, "file"), "wb") as file:
            holder.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file))
        monkeypatch.setattr(select, "poll", Ending)
    monkeypatch.undo()

    assert left(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_a_process_that_does_not_end_is_an_error_and_keeps_nothing_once_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(filesystems, "END_SECONDS", 0.01)
    still = pytest.raises(TimeoutError, match="a process still uses it")
    with still, filesystems.fresh("ext4", str(tmp_path), SMALL) as where, open(Path(where, "file"), "wb") as file:
        holder.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file))

    assert len(loops(tmp_path)) == 1
    holder[0].kill()
    holder[0].wait()
    assert left(tmp_path) == []


@pytest.mark.usefixtures("mounts")
def test_nothing_but_an_empty_directory_is_left_when_the_process_is_killed(tmp_path: Path) -> None:
    before = free(tmp_path)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        where = Path(process.stdout.readline().strip())
        held = loops(tmp_path)
        process.kill()

    assert len(held) == 1 and where.parent == tmp_path
    assert left(tmp_path) == [where.name] and not list(where.iterdir())
    assert free(tmp_path) > before - SMALL // 2


def test_every_block_of_the_file_is_written(tmp_path: Path) -> None:
    filefrag = shutil.which("filefrag", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if filefrag is None or mounted_at(tmp_path)[0] != "ext4":
        pytest.skip("needs filefrag and ext4")

    def extents() -> str:
        return subprocess.run([filefrag, "-v", path], check=True, text=True, capture_output=True).stdout

    path = tmp_path / "file"
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * filesystems.CHUNK)
        os.pwrite(file.fileno(), b"kept", 5000)
        reserved = extents()
        os.fsync(file.fileno())
        filesystems._write_again(file.fileno(), 2 * filesystems.CHUNK)

    assert "unwritten" in reserved and "unwritten" not in extents()
    content = path.read_bytes()
    assert content[5000:5004] == b"kept" and not any(content[:5000]) and not any(content[5004:])


def test_a_csv_says_what_the_machines_filesystem_is_and_how_fast_it_flushes(tmp_path: Path) -> None:
    with filesystems.places(["machine"], str(tmp_path), 0) as places:
        (line,) = filesystems.lines(places)

    words, milliseconds = filesystems.flushes([line, "machine: 2 cores"])["machine"]
    assert words.startswith(mounted_at(tmp_path)[0]) and milliseconds > 0
    assert list(tmp_path.iterdir()) == []


def test_a_missing_mkfs_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(filesystems, "CONTROL", "/dev/null")
    monkeypatch.setitem(filesystems.MAKE, "xfs", "mkfs.absent -q")

    named = pytest.raises(filesystems.Unavailable, match="needs mkfs.absent, of Debian's package xfsprogs")
    with named, filesystems.fresh("xfs", str(tmp_path), 0):
        pytest.fail("it was made")


@pytest.mark.usefixtures("mounts")
def test_no_room_is_an_error_that_names_the_directory(tmp_path: Path) -> None:
    named = pytest.raises(filesystems.Unavailable, match=f"a fresh ext4 filesystem in {tmp_path}: .*No space left")
    with named, filesystems.fresh("ext4", str(tmp_path), 2 * free(tmp_path)):
        pytest.fail("it was made")

    assert left(tmp_path) == []
