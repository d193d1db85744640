"""Persistent checkpoints of a torchft job through Cairn: written by one replica group, while all of them train on.

    manager = cairn.torchft.Manager(pg=..., ..., replica_id="train_0")  # instead of torchft.Manager
    checkpoints = cairn.torchft.Checkpoints(manager, root, replica="train_0", own=["rng", "loader"], host_memory="4GiB")
    try:
        tree = checkpoints.restore(tree)  # before the first quorum: all replica groups begin at the same step
    except cairn.NotFound:
        pass
    while manager.current_step() < steps:
        ...
        optimizer.step()  # torchft.OptimizerWrapper
        if manager.current_step() % 100 == 0:
            checkpoints.save(tree)

    <root>/shared/           what is identical in all replica groups, and the Manager's state, once
    <root>/replica-<name>/   of each replica group its `own` part of the tree

Both are Cairn roots. Who writes `shared`: the replica group that is number 0 of those that took part in the step. When it
dies, another is number 0 in the next quorum, and opens the root as its writer at its next save. The save that had been under
way leaves no checkpoint. When the dead one is back and is number 0 again, the other finishes its saves and lets go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

try:
    import torchft
except ImportError as error:
    raise ImportError(f"cairn.torchft needs torchft 0.2: pip install torchft ({error})") from error

from ._arguments import without_memory
from ._checkpointer import Checkpointer
from ._errors import Corrupt, Error, FailedPrecondition, InvalidArgument, NotFound, unless_disk_hangs
from ._loading import for_reading
from ._paths import local_path, steps_in
from ._save import Save

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoints", "Manager"]

_log = logging.getLogger("cairn")
_RETENTION = re.compile("keep_|best_")  # Options: a group's own steps are removed after the shared ones.
_STATE = "torchft"  # The Manager's key in a checkpoint.
_GIVEN_UP = "given_up"  # In the Manager's state.
_OWN = "replica-"  # Begins the name of a group's own root.


@dataclass
class _Progress:
    """What a Manager tells its Checkpoints, and the fences that it must call."""

    started: bool = False
    committed: bool = False  # The newest step.
    recovered: bool = False  # Another replica group's state was loaded since the last save.
    given_up: dict[str, list[str]] = field(default_factory=dict)  # See Checkpoints._find_given_up.
    fences: list[Callable[[], None]] = field(default_factory=list)

    def fence(self) -> None:
        for fence in self.fences:
            fence()


class Manager(torchft.Manager):
    """torchft.Manager, with the same arguments. It waits until saves in flight are captured before tensors change: before
    the optimizer's step (at the end of `should_commit`), and before the state of another replica group is loaded.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._progress = _Progress()
        super().__init__(*args, **kwargs)

    @property
    def committed(self) -> bool:
        """Whether the newest step was committed, by this replica group."""
        return self._progress.committed

    def start_quorum(self, *args: Any, **kwargs: Any) -> None:
        self._progress.started = True
        super().start_quorum(*args, **kwargs)

    def should_commit(self, *args: Any, **kwargs: Any) -> bool:
        self._progress.committed = False
        self._progress.committed = committed = super().should_commit(*args, **kwargs)
        self._progress.fence()
        return bool(committed)

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None:
        def load(state: Any) -> None:
            self._progress.fence()
            self._progress.recovered = True
            load_state_dict(state)

        super().register_state_dict_fn(key, load, state_dict)

    def state_dict(self) -> dict[str, Any]:
        """torchft's, and which groups' own parts this run has given up. So a group that joins it knows as well."""
        given_up = self._progress.given_up
        return {**super().state_dict(), **({_GIVEN_UP: given_up} if given_up else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._progress.given_up = state_dict.get(_GIVEN_UP, {})
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _GIVEN_UP})


class Checkpoints:
    """One replica group's part in the checkpoints of a torchft job. Every rank of every group makes one and calls the same.

    `manager` is a `cairn.torchft.Manager`. `root` is one folder that all groups see. `own` are the keys of the tree that
    each replica group keeps for itself (random generators, a data loader); they need `replica`, a name that the group
    has again when it is restarted. Options are Checkpointer's (host_memory, keep_last, ...); `group` are the ranks of this
    replica group, if it has several. An older writer of the root is waited for up to open_timeout, and then displaced.
    """

    def __init__(
        self,
        manager: Manager,
        root: str | os.PathLike[str],
        *,
        replica: str = "",
        own: Iterable[str] = (),
        **options: Any,
    ) -> None:
        if not isinstance(manager, Manager):
            raise InvalidArgument(f"manager: expected a cairn.torchft.Manager, found {type(manager)}: it fences")
        self._own_keys = (own,) if isinstance(own, str) else tuple(own)
        if (replica or self._own_keys) and not re.fullmatch(r"[\w.-]+", replica):
            raise InvalidArgument(
                f"replica: expected letters, digits and any of _.- for the name of this group's folder, found {replica!r}"
            )
        self._manager = manager
        self._progress = manager._progress
        without_memory(options)
        self._options = {"take_over": True, **options}
        root = local_path(root, "root")
        self._shared_root = os.path.join(root, "shared")
        self._shared: Checkpointer | None = None  # While this group writes.
        self._leaving: Future[None] | None = None  # It ends once the root is another group's.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cairn-torchft")
        self._protected: list[Any] = []
        self._last = 0  # The newest step that was saved, or need not be.
        self._abandoned: set[tuple[int, str]] = set()  # (step, attempt) of what is newer than the restored one.
        self._own: Checkpointer | None = None
        self._replica = replica
        os.makedirs(self._shared_root, exist_ok=True)
        if self._own_keys:
            small = {key: value for key, value in for_reading(self._options).items() if not _RETENTION.match(key)}
            self._own = Checkpointer(os.path.join(root, _OWN + replica), **small, keep_last=0)
        self._progress.fences.append(self.fence)

    def restore(
        self, tree: dict[str, Any], *, fall_back: bool = False, strict: bool = True, cast: str | None = None
    ) -> dict[str, Any]:
        """Restores the tree and the Manager from the newest checkpoint, as Checkpointer.restore does, whose arguments these
        are. Call it before the first quorum. Returns the tree with its plain values.

        This group's own part comes from the same step; if it has none of that step (or only one of a run that was given up
        while this group was away, or, with `fall_back`, a damaged one), from the newest before, with a warning; if there is
        none at all, it stays as it is. Raises NotFound if there is no checkpoint: the first start.
        FailedPrecondition after the first quorum: from then on torchft keeps the groups at one step.
        """
        if self._progress.started:
            raise FailedPrecondition("restore: call it before the first quorum, which the first zero_grad starts")
        shared, own = self._split(tree)
        with Checkpointer(self._shared_root, read_only=True, **for_reading(self._options)) as reader:
            try:
                restored: dict[str, Any] = reader.restore(shared, fall_back=fall_back, strict=strict, cast=cast)
            except NotFound:
                self._remove_own("the root holds no checkpoint of all groups")
                self._progress.given_up = reader._engine.ranks.agree("given up", self._find_given_up)
                raise
            self._last = self._manager.current_step()
            self._progress.given_up = reader._engine.ranks.agree("given up", self._find_given_up)
            # Damaged, or of a run that is given up: training writes these steps again.
            self._abandoned = {(one.step, one.attempt) for one in reader.checkpoints() if one.step > self._last}
        del restored[_STATE]
        return tree | restored | self._restore_own(own, fall_back, strict, cast)

    def save(self, tree: dict[str, Any], **options: Any) -> Save | None:
        """Starts a save of the step that was just committed, and returns. `options` are Checkpointer.save's.

        Every rank of every replica group calls it at the same steps. Each group saves its own part; the one that writes
        saves the rest with the Manager's state, and gets that Save. The others get None, and so do all if the newest
        step was not committed or is saved already. Raises InvalidArgument, with the path, for what cannot be kept without
        pickle, and the first failure of an earlier save.
        """
        step = self._manager.current_step()
        if not self._progress.committed or step <= self._last:
            return None
        shared, own = self._split(tree)
        writes = self._manager.participating_rank() == 0
        if self._leaving is not None and self._leaving.done():
            self._wait_until_left()
        # A group that was behind the others may have lost the root to one of them.
        if not writes or self._progress.recovered:
            self._leave()
        for checkpointer in self._open_ones():
            unless_disk_hangs(checkpointer.check)
        self._progress.recovered = False
        if self._own is not None:
            self._own.save(step, own, replace=True)
            self._prune_own(self._own)
        save = self._save_shared(step, shared, options) if writes else None
        self._last = max(self._last, step)
        return save

    def protect(self, *targets: Any) -> None:
        """Fences before each step of these optimizers too. Needed only for those that step without `should_commit`, as the
        inner ones of LocalSGD and DiLoCo do."""
        self._protected += targets
        for checkpointer in self._open_ones():
            checkpointer.protect(*targets)

    def fence(self) -> None:
        """Orders later work after the capture of every save so far. Call it before other code changes tensors in place."""
        for checkpointer in self._open_ones():
            checkpointer._engine.fence()

    def drain(self) -> None:
        """Waits until every save of this group is durable. Raises the first failure that nobody has heard."""
        for checkpointer in self._open_ones():
            checkpointer.drain()
        self._wait_until_left()

    def close(self) -> None:
        """Waits until every save of this group is durable, and frees the pools. Raises the first failure."""
        if self.fence in self._progress.fences:
            self._progress.fences.remove(self.fence)
        with contextlib.ExitStack() as closing:
            closing.callback(self._worker.shutdown)
            closing.callback(self._wait_until_left)
            for checkpointer in self._open_ones():
                closing.callback(checkpointer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Error as lost:
            if error is None:
                raise
            _log.error("a checkpoint was lost: %s", lost)

    # Internal

    def _split(self, tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is identical in all groups, with the Manager, and this group's own part."""
        if not isinstance(tree, dict) or _STATE in tree:
            raise InvalidArgument(f'tree: expected a dict without the key "{_STATE}", which is the Manager\'s')
        if missing := [key for key in self._own_keys if key not in tree]:
            raise InvalidArgument(f"own: expected keys of the tree, which lacks {', '.join(missing)}")
        own = {key: tree[key] for key in self._own_keys}
        return {key: value for key, value in tree.items() if key not in own} | {_STATE: self._manager}, own

    def _open_ones(self) -> list[Checkpointer]:
        return [one for one in (self._own, self._shared) if one is not None]

    def _restore_own(self, own: dict[str, Any], fall_back: bool, strict: bool, cast: str | None) -> dict[str, Any]:
        if self._own is None:
            return own
        step, checkpointer = self._last, self._own
        given_up = {*self._progress.given_up.get(self._replica, ())}

        def find() -> dict[str, Any]:
            found = [one for one in checkpointer.checkpoints() if one.damage is None and one.step <= step]
            return {"steps": [(one.step, one.attempt in given_up) for one in found]}

        expected = f"expected step {step}, as in {self._shared_root}"
        for chosen, is_given_up in reversed(checkpointer._engine.ranks.agree("own", find)["steps"]):
            if is_given_up:
                _log.warning("%s: step %d is passed over: it is of a run that was given up", checkpointer.root, chosen)
                continue
            if chosen != step:
                _log.warning("%s: %s, found step %d", checkpointer.root, expected, chosen)
            try:
                return dict(checkpointer.restore(own, chosen, strict=strict, cast=cast))
            except Corrupt as error:
                if not fall_back:
                    raise
                _log.warning("%s: passed over: %s", checkpointer.root, error)
        _log.warning("%s: %s, found nothing", checkpointer.root, expected)
        self._remove_own(f"they are newer than step {step}, which training goes on from")
        return own

    def _find_given_up(self) -> dict[str, list[str]]:
        """Of each group, also those that are away, the attempts in its own root that belong to no step of this run: of
        steps after the one from which it goes on, and those that were given up before. They are in each shared checkpoint."""
        found = {}
        for name in sorted(os.listdir(os.path.dirname(self._shared_root))):
            if not name.startswith(_OWN):
                continue
            replica = name[len(_OWN) :]
            before = self._progress.given_up.get(replica, ())
            root = os.path.join(os.path.dirname(self._shared_root), name)
            with Checkpointer(root, read_only=True, host_memory="16MiB", chunk="1MiB") as reader:
                listed = reader.checkpoints()
            left = [one.attempt for one in listed if one.step > self._last or one.attempt in before]
            if left:
                found[replica] = left
        return found

    def _remove_own(self, why: str) -> None:
        """Of what is this group's own, all: training comes to these steps again."""
        if self._own is None:
            return
        checkpointer = self._own

        def remove() -> dict[str, Any]:
            for step in checkpointer.steps():
                _log.warning("%s: step %d is removed: %s", checkpointer.root, step, why)
                checkpointer.remove(step)
            return {}

        checkpointer._engine.ranks.agree("own removed", remove)

    def _prune_own(self, checkpointer: Checkpointer) -> None:
        """Removes this group's own steps before the oldest shared one, so that each shared one keeps its own part."""
        if checkpointer._engine.ranks.rank != 0:
            return
        shared = steps_in(self._shared_root)
        for step in checkpointer.steps() if shared else []:
            if step < min(shared):
                checkpointer.remove(step)

    def _save_shared(self, step: int, shared: dict[str, Any], options: dict[str, Any]) -> Save | None:
        if self._shared is None:
            self._shared, newest = self._open_shared()
            if step <= newest:
                _log.warning(
                    "%s has step %d from another replica group: step %d is left out", self._shared_root, newest, step
                )
                self._last = newest
                return None
        return self._shared.save(step, shared, **options)

    def _open_shared(self) -> tuple[Checkpointer, int]:
        """Becomes the root's writer. Also returns the newest step that counts, 0 if there is none."""
        self._wait_until_left()
        checkpointer = Checkpointer(self._shared_root, **self._options)
        checkpointer.protect(*self._protected)

        def newest() -> dict[str, Any]:
            listed = checkpointer.checkpoints()
            left = [one for one in listed if (one.step, one.attempt) not in self._abandoned]
            return {
                "step": max((one.step for one in left if one.damage is None), default=0),
                "abandons": len(left) < len(listed),
            }

        found = checkpointer._engine.ranks.agree("newest", newest)
        if found["abandons"] and found["step"]:
            # Only a writer that has restored a step may write steps again that are newer.
            reading = checkpointer._engine.reading
            reading.read_views(reading.choose(found["step"]), [], resume=True)
        return checkpointer, int(found["step"])

    def _leave(self) -> None:
        """Lets the root go, in the background, once its saves have ended."""
        if self._shared is None:
            return
        self._shared._engine.fence()
        self._leaving = self._worker.submit(_close, self._shared)
        self._shared = None

    def _wait_until_left(self) -> None:
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.result()


def _close(checkpointer: Checkpointer) -> None:
    try:
        checkpointer.close()
    except FailedPrecondition as error:
        _log.warning("%s: another replica group writes now: %s", checkpointer.root, error)
