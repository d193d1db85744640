"""What the benchmarks do to the page cache before they measure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cairn_bench.shared import WORK, machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk: in memory there is no page cache to drop."""
    os.makedirs(WORK, exist_ok=True)
    made = Path(WORK) / f"test-machine-{os.getpid()}"
    (made / "inner").mkdir(parents=True)
    yield made
    for file in (made / "inner").iterdir():
        file.unlink()
    (made / "inner").rmdir()
    made.rmdir()


def cached(file: Path) -> bool:
    with open(file, "rb") as opened:
        try:
            return os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


def test_pages_are_dropped_in_inner_folders_too_and_nothing_is_lost(folder: Path) -> None:
    file = folder / "inner/file"
    file.write_bytes(b"1" * 10_000)
    if not cached(file):
        pytest.skip("this filesystem does not say what is cached")

    machine.drop_pages(folder)

    assert not cached(file)
    assert file.read_bytes() == b"1" * 10_000


def test_the_page_cache_is_filled_with_nothing_on_the_disk() -> None:
    code = """
import os
from cairn_bench.shared import WORK, machine
def read():
    return next(int(line.split()[1]) for line in open("/proc/self/io") if line.startswith("rchar"))
before = read()
machine.fill_page_cache(10 << 20)
print(read() - before, os.stat(os.path.join(WORK, "sparse")).st_blocks)
"""

    given = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", code], env=given, stdout=subprocess.PIPE, text=True, check=True)

    read, blocks = map(int, ran.stdout.split())
    assert read >= 8 << 20 and blocks == 0
    assert not os.path.exists(os.path.join(WORK, "sparse")), (
        "a file of 1 TiB is left in the way of every copy and archive"
    )
