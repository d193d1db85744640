"""The committed checkpoints of a root: listed, verified, pinned, removed and published."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._arguments import callback, optional_step, step_number, timeout_of
from ._best import MODES, KeepBest, description, ranked
from ._errors import InvalidArgument, NotFound
from ._paths import local_path
from ._ranks.reading import Reading
from ._save import Checkpoint

if TYPE_CHECKING:
    from ._core import Checkpointer


class Catalog:
    """What a Checkpointer does with checkpoints as a whole."""

    _core: Checkpointer
    _reading: Reading
    _best: KeepBest | None

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first; those with damaged manifests come last.

        Only manifests are read: `verify`, `restore` and `load` find a missing or damaged shard.
        """
        return [Checkpoint(**fields, _describe=self._describe) for fields in self._core.checkpoints()]

    def best(self, metric: str, mode: str = "min") -> int | None:
        """Step of the checkpoint with the lowest (or with "max" the highest) value of a metric; None if no checkpoint
        has it. Of equal ones the newest. If some checkpoints are finite, only these count (see `nonfinite`)."""
        if mode not in MODES:
            raise InvalidArgument(f'mode: expected "min" or "max", found {mode!r}')
        found = ranked(self._core, metric, mode)
        return int(found[0]["step"]) if found else None

    def _describe(self, path: str, what: str) -> dict[str, Any]:
        return description(self._core, path, what)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints with good manifests, oldest first."""
        return [one.step for one in self.checkpoints() if one.damage is None]

    def latest(self, *, fall_back: bool = False) -> int | None:
        """Step of the newest committed checkpoint; None if there is none. `restore` waits for newer ones in flight.

        Only manifests are read. Raises Corrupt, as `restore` does, if the newest checkpoint's manifest is damaged. With
        `fall_back` it is the newest checkpoint in which every byte is good, and every byte is read to find out.
        """
        if fall_back:
            return self._reading.newest_undamaged()
        listed = self.checkpoints()
        if not listed:
            return None
        # A damaged checkpoint may be the newest or not; `choose` raises the error that says what is wrong with it.
        if listed[-1].damage is None:
            return listed[-1].step
        try:
            details = self._core.choose(None, "", None)
        except NotFound:
            return None
        details["hold"].release()
        return int(details["step"])

    def verify(self, step: int | None = None, *, progress: bool | Callable[[int, int], None] = False) -> None:
        """Reads every byte of a checkpoint and checks it; raises Corrupt. Waits for saves in flight as `load` does.
        `progress=True` shows a bar (tqdm)."""
        step = optional_step(step)
        self._reading.wait_for_saves(step)
        if progress is True:
            from tqdm import tqdm

            with tqdm(unit="B", unit_scale=True, desc="verify") as bar:

                def show(done: int, total: int) -> None:
                    bar.total = total
                    bar.update(done - bar.n)

                self._core.verify(step, "", show)
            return
        self._core.verify(step, "", callback("progress", progress or None))

    def pin(self, step: int) -> None:
        """Keeps a checkpoint from retention until `unpin`. Durable on return. Retention may have removed it by then:
        `save(..., pin=True)` pins in the commit."""
        self._core.pin(step_number(step), True)

    def unpin(self, step: int) -> None:
        """Ends the pin. A checkpoint that `keep_best` keeps stays pinned. Durable on return."""
        self._core.pin(step_number(step), False)
        if self._best is not None:
            self._best.settle()

    def remove(self, step: int) -> None:
        """Removes a checkpoint, even a pinned one. Raises FailedPrecondition while somebody reads it."""
        self._core.remove(step_number(step))

    def publish(self, step: int, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Moves a committed checkpoint to a path outside the root, on the same filesystem; durable on return.

        A checkpoint (or link) at that path is removed once nobody reads it. If somebody still does after `timeout`
        seconds, raises DeadlineExceeded. Raises AlreadyExists if the path holds something else. After a crash the path
        holds the old checkpoint or the new one.
        """
        self._core.publish(step_number(step), os.fsencode(local_path(path)), timeout_of(timeout))

    def remove_published(self, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Removes the checkpoint (or link) at that path. Raises NotFound if there is nothing, InvalidArgument if it is
        something else; waits for readers as `publish` does."""
        self._core.remove_published(os.fsencode(local_path(path)), timeout_of(timeout))

    @property
    def stats(self) -> dict[str, Any]:
        """Of this Checkpointer as a whole, since it opened; sizes are bytes, ages seconds. In a group it is this rank's.

        io_queue              "io_uring" or "threads"; io_queue_reason says why that one
        ranks_of_node         how many ranks share this node, as far as is known; an event of the opening says from where
        pool_bytes            the pinned pool; pool_limit_bytes is what it may grow to
        pool_hugepage_bytes   how much of the pool huge pages back; 0 until it was touched
        pool_peak_bytes       the most that was in use at once
        chunk_bytes           one chunk of the pool: what is copied and written at once
        saves_started         saves that were accepted; each is durable, failed or in flight
        saves_durable, saves_failed, saves_in_flight
                              how many of them are; those cancelled, skipped or replaced count as failed
        since_durable         the age of the newest durable save: how long ago it became durable. None before the first
        bytes_written         what ended saves gave to the filesystem, with headers and padding
        shards_recycled       files of retired checkpoints that were overwritten instead of new ones made;
                              not_recycled_reason says why the last one that was rejected could not be
        save_interval         iterations between saves, as `slowdown` and `mtbf` have chosen; 0 before that.
                              save_interval_reason says what limits it
        """
        return self._core.stats()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last `trace_events` events as Chrome trace JSON (opens in Perfetto): copies of chunks, writes,
        fences, saves. Times are microseconds of time.monotonic()."""
        self._core.write_trace(local_path(path))
