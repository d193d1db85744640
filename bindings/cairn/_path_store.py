"""Checkpoints that have a path, such as `epoch=3-step=900.ckpt` or `last.ckpt`, instead of a step.

    <folder>/
      last.ckpt/          a checkpoint: what Cairn commits as step-N, whole or not at all; may be copied and moved
    .<folder>.cairn/      the root of the one Checkpointer that writes them all: step-N here will move to its path

That root stands beside the folder, so that who lists or copies the folder sees checkpoints only. It is `.cairn` in the
folder where a rename from beside it is impossible: the folder is a mount point, or its parent is not writable.

A path gets its checkpoint in this order. After a crash at any point the path holds the old or the new one, whole:
  1. The Checkpointer makes `step-N` durable in its root. N is only a counter, not the training's step.
  2. `Checkpointer.publish` renames it to the path, and retires what had that name (src/store/publish.cc has the order).
What a crash leaves in the root belongs to no path. It is removed when the folder is opened again.

With a group (`save` gets it) all ranks save one checkpoint, and rank 0 alone gives it its path.

One worker thread does step 2, and removals, in the order of the calls. So when a newer checkpoint displaces an older
one, the older one is removed only after the newer one is durable. If the newer one fails, the older one stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from . import _in_flight
from ._arguments import host_memory_size, without_memory
from ._checkpointer import Checkpointer
from ._errors import (
    AlreadyExists,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    NotFound,
    UnknownOutcome,
    unless_disk_hangs,
)
from ._loading import reader_of
from ._paths import is_checkpoint, local_path, step_folder, steps_in
from ._save import Save

_log = logging.getLogger("cairn")


def _save_tree(checkpointer: Checkpointer, step: int, tree: Any) -> Save:
    return checkpointer.save(step, tree)


class PathStore:
    """Saves trees under paths of the local filesystem, several at once; removes and loads them. Safe from any thread.

    Options are Checkpointer's, except those that choose what is kept: the caller removes checkpoints. The first save
    opens the Checkpointer, and with it the pool, in the folder of its path. It serves every path on the same
    filesystem.
    """

    def __init__(self, **options: Any) -> None:
        for name in ("keep_last", "keep_every", "when_full", "read_only"):
            if name in options:
                raise InvalidArgument(f"{name} is not an option here: each path is kept until it is removed")
        host_memory_size("host_memory", options.get("host_memory", "auto"))
        without_memory(options)
        self._options = options
        self._checkpointer: Checkpointer | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._next = 1
        self._saving: deque[Future[None]] = deque()
        self._calls = threading.RLock()  # One save, removal or closing at a time; guards the above. Not for the worker.
        self._mutex = threading.Lock()  # Guards what follows.
        self._planned: dict[str, tuple[bool, Future[None]]] = {}  # By path, the newest call: save or remove.
        self._newest: Future[None] | None = None  # Of the saves.
        self._failure: BaseException | None = None
        _in_flight.path_stores.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return self._options

    def __setstate__(self, options: dict[str, Any]) -> None:
        self.__init__(**options)  # type: ignore[misc]

    def save(
        self,
        tree: Any,
        path: str | os.PathLike[str],
        start: Callable[[Checkpointer, int, Any], Save] = _save_tree,
        group: Any = None,
    ) -> Future[None]:
        """Starts a save, as Checkpointer.save does. The future ends when `path` holds it, durably.

        An older checkpoint at the path stays until then. Raises AlreadyExists if the path holds something else. Waits,
        up to full_timeout, while max_in_flight saves are not yet at their paths. The future fails with DeadlineExceeded
        if somebody reads the path's checkpoint for longer than that.

        With a `group`, Checkpointer's, every rank calls it with the same path, and `check` is called too: a failure of
        one rank is raised on all, unless the disk hung: that is logged. The futures of other ranks than 0 end when the checkpoint is durable, which is before
        it has its path.
        """
        path = local_path(path)
        if os.path.lexists(path) and not os.path.islink(path) and not is_checkpoint(path):
            raise AlreadyExists(
                f"{path} exists and is not a Cairn checkpoint; it is left as it is: move it away, or save to another path"
            )
        with self._calls:
            checkpointer = self._open(os.path.dirname(path), group)
            if group is None:
                self._wait_for_slot()
            else:
                checkpointer._engine.ranks.together("paths", self._check_and_wait)
            step = self._next
            self._next += 1  # Also if the start fails here alone: the other ranks use the next number next.
            save = start(checkpointer, step, tree)
            self._saving.append(
                self._submit(path, True, lambda: _publish(checkpointer, save, path, self._full_timeout))
            )
            return self._saving[-1]

    def remove(self, path: str | os.PathLike[str]) -> Future[None]:
        """Removes the checkpoint at `path` once every save so far has ended, and only if the newest of them is durable.

        A save to this path that is still in flight is removed as well. It is no error if there is nothing.
        """
        path = local_path(path)
        with self._calls:
            with self._mutex:
                displacer, planned = self._newest, path in self._planned
            there = planned or os.path.islink(path) or is_checkpoint(path)
            # In a group this rank is alone here: it neither opens nor closes the Checkpointer of all ranks.
            ranks = self._checkpointer is not None and self._checkpointer.world > 1
            checkpointer = self._open(os.path.dirname(path)) if there and not ranks else self._checkpointer

            def remove() -> None:
                if displacer is not None and displacer.exception() is not None:
                    _log.warning("%s stays: the save that displaced it has failed", path)
                elif checkpointer is not None and there:
                    _remove(checkpointer, path, self._full_timeout)
                elif os.path.lexists(path):
                    _log.warning("%s stays: it is not a Cairn checkpoint", path)

            return self._submit(path, False, remove)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether `path` will exist when every save and removal in flight has succeeded."""
        path = local_path(path)
        with self._mutex:
            planned = self._planned.get(path)
        return planned[0] if planned else os.path.exists(path)

    def reader(self, path: str | os.PathLike[str], group: Any = None) -> Checkpointer:
        """A Checkpointer that can read the checkpoint at `path`: give it that as `folder`. Waits for a save to this path
        that is in flight. With a `group` every rank calls it.

        Raises NotFound if there is nothing, InvalidArgument if it is something else.
        """
        return reader_of(local_path(path), self._options, group)

    def await_path(self, path: str, timeout: float | None = None) -> None:
        """Waits for the newest save to this path, or its removal, if that is in flight. Raises DeadlineExceeded."""
        at = _resolved(local_path(path))
        with self._mutex:
            planned = [future for path, (_, future) in self._planned.items() if _resolved(path) == at]
        for future in planned:
            try:
                future.exception(timeout)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{path}: expected this process's save or removal there to end before it is read; it has not after "
                    f"{timeout:g} s"
                ) from None

    def finish(self) -> None:
        """Waits for every save and removal in flight; failures are for `check`."""
        with self._mutex:
            planned = [future for _, future in self._planned.values()]
        for future in planned:
            future.exception()

    @property
    def checkpointer(self) -> Checkpointer | None:
        """The one that saves, if it is open."""
        return self._checkpointer

    def check(self) -> None:
        """Raises the first failure of a save or a removal that was not raised before."""
        with self._mutex:
            failure, self._failure = self._failure, None
            if failure is not None:
                self._newest = None  # Later removals do not depend on the save that failed.
        if failure is not None:
            raise failure

    def fence(self) -> None:
        """Orders later work of the current streams after the capture of every save so far; see Checkpointer.fence."""
        if self._checkpointer is not None:
            self._checkpointer._engine.fence()

    def close(self, under_way: BaseException | None = None) -> None:
        """Waits for saves (at most close_timeout) and removals in flight, frees the pool, then calls `check`. With an
        exception `under_way`, which counts more, it logs what it would raise."""
        try:
            with self._calls:
                self._close()
            self.check()
        except Exception as error:
            if under_way is None:
                raise
            _log.error("a checkpoint was lost: %s", error)

    @property
    def _full_timeout(self) -> float:
        return float(self._options.get("full_timeout", 3600.0))

    def _open(self, folder: str, group: Any = None) -> Checkpointer:
        if not os.path.isdir(folder):  # A disk that hangs holds mkdir, also of what is there.
            os.makedirs(folder, exist_ok=True)
        opened = self._checkpointer
        if opened is not None:
            if _mount_of(opened.root) == _mount_of(folder) and (group is None) == (opened.world == 1):
                return opened
            self._close()  # A rename cannot cross mounts.
        # No recycling: nothing is retired under this root, and what a crash left must be removed.
        options = {"keep_last": 0, "recycle": False, **self._options}
        self._checkpointer = opened = Checkpointer(staging_of(folder), group=group, **options)
        self._next = opened._engine.ranks.agree("paths", lambda: {"next": _sweep(opened)})["next"]
        return opened

    def _check_and_wait(self) -> None:
        unless_disk_hangs(self.check)
        self._wait_for_slot()

    def _wait_for_slot(self) -> None:
        # The Checkpointer counts a save as ended before its checkpoint has its path.
        while self._saving and (self._saving[0].done() or len(self._saving) >= self._options.get("max_in_flight", 2)):
            try:
                self._saving[0].exception(self._full_timeout)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"no save has ended for {self._full_timeout} s: is a process reading its path?"
                ) from None
            self._saving.popleft()

    def _close(self) -> None:
        checkpointer, worker = self._checkpointer, self._worker
        self._checkpointer = self._worker = None
        if checkpointer is not None:
            try:
                checkpointer.drain(checkpointer._engine.within_grace(checkpointer._engine.close_timeout))
            except DeadlineExceeded:
                self._abandon(checkpointer)
            except Error:
                pass  # The save's future has the error.
        if worker is not None:
            worker.shutdown(wait=True)
        if checkpointer is not None:
            checkpointer.close()

    @staticmethod
    def _abandon(checkpointer: Checkpointer) -> None:
        try:
            checkpointer.close(0)
        except Error as error:
            _log.error("%s: %s", checkpointer.root, error)

    def _submit(self, path: str, saves: bool, work: Callable[[], None]) -> Future[None]:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="cairn-paths")

        def run() -> None:
            try:
                work()
            except BaseException as error:
                _log.error("%s: %s", path, error)
                with self._mutex:
                    self._failure = self._failure or error
                raise
            finally:
                with self._mutex:
                    if self._planned[path][1] is future:
                        del self._planned[path]

        with self._mutex:
            future = self._worker.submit(run)
            self._planned[path] = saves, future
            if saves:
                self._newest = future
        return future


def staging_of(folder: str) -> str:
    """The root in which checkpoints of this folder are written, before they get their paths."""
    folder = os.path.realpath(folder)
    parent, name = os.path.split(folder)
    beside = os.path.join(parent, f".{name}.cairn")
    if name and os.access(parent, os.W_OK | os.X_OK) and _mount_of(parent) == _mount_of(folder):
        return beside
    return os.path.join(folder, ".cairn")


def _resolved(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _mount_of(folder: str) -> tuple[int, str]:
    """The device and the mount of a folder: renames work within one mount, and one device may be mounted twice."""
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        mount = ""
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}") as lines:
            mount = next((line.strip() for line in lines if line.startswith("mnt_id:")), "")
        return os.fstat(descriptor).st_dev, mount
    finally:
        os.close(descriptor)


def _sweep(checkpointer: Checkpointer) -> int:
    """Removes what a crash left in the root, and returns the first number that is free."""
    root = checkpointer.root
    left = steps_in(root)
    for step in left:
        # A crash left it: the new checkpoint before it had its path, or the old one that the path had before.
        name = step_folder(root, step)
        try:
            os.unlink(name) if os.path.islink(name) else checkpointer.remove(step)
        except (Error, OSError) as error:
            _log.warning("%s is left: %s", name, error)
    return max(left, default=0) + 1


def _publish(checkpointer: Checkpointer, save: Save, path: str, timeout: float) -> None:
    save.wait()
    if checkpointer.rank != 0:
        return
    try:
        checkpointer.publish(save.step, path, timeout)
    except UnknownOutcome:
        raise  # The step's folder may now hold what the path had before.
    except Error:
        with contextlib.suppress(Error):
            checkpointer.remove(save.step)  # It will never get its path.
        raise


def _remove(checkpointer: Checkpointer, path: str, timeout: float) -> None:
    try:
        checkpointer.remove_published(path, timeout)
    except NotFound:
        pass
    except InvalidArgument as error:
        _log.warning("%s", error)
