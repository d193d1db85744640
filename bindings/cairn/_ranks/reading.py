"""How a Checkpointer reads checkpoints: into the caller's tree (restore), or into new tensors (load).

A reader waits first for the saves of this process that it would read (see _in_flight).

A restore, in a group of ranks or alone:
  0. Each rank waits for them. If that takes too long, it says so in the step that follows.
  1. Rank 0 chooses an attempt by manifests alone, and announces it.
  2. Each rank finds that attempt, holds it, and inspects its own part: its shard's header, and what is replicated. No
     tensor is written before every rank has planned its tree.
  3. Each rank reads and verifies its part, and reports the result. The restore succeeds if all ranks succeed.
If an attempt is Corrupt on any rank, all ranks pass over it, provided that an older one is permitted. If a rank does
not find it (NotFound), rank 0 chooses again, after a pause: it is gone, or that rank sees it late (see late). Any other error
ends the restore on all ranks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from .. import _core, _in_flight, _tree
from .._errors import Corrupt, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, NotFound
from .._tree import tensors as tree_tensors
from .._tree.paths import listed, readable
from .._tree.tensors import LazyTensor
from . import replicas
from .agreement import Ranks
from .late import Again, LateChoice

_log = logging.getLogger("cairn")
_Progress = Callable[[int, int], None] | None
_PATIENCE = 60.0  # Seconds that a process alone chooses again because its choice is gone: longer than NFS caches names.


@dataclass
class _PassedOver:
    """The damaged checkpoints that one search has found."""

    attempts: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    first: Corrupt | None = None

    def add(self, reason: str, error: Corrupt, attempt: str = "") -> None:
        """`attempt` is empty if the manifest cannot be read."""
        if reason not in self.reasons:
            _log.warning("passed over: %s", reason)
        self.reasons.add(reason)
        self.attempts += [attempt] if attempt else []
        self.first = self.first or error.with_traceback(None)


class Reading:
    """See Checkpointer.restore and load. An empty `folder` is the root's checkpoint of that step. It waits for saves in
    flight up to `timeout` seconds."""

    def __init__(
        self, core: _core.Checkpointer, ranks: Ranks, replicated: replicas.Rules, root: str, timeout: float
    ) -> None:
        self._core, self._ranks, self._replicated = core, ranks, replicated
        self._root, self._timeout = root, timeout

    def wait_for_saves(self, step: int | None, folder: str = "") -> None:
        """Waits for the saves of this process that a reader would read. Raises DeadlineExceeded."""
        _in_flight.wait_for(self._root, step, folder, self._timeout)

    def restore(
        self,
        tree: Any,
        step: int | None,
        folder: str,
        fall_back: bool,
        progress: _Progress,
        *,
        strict: bool = True,
        cast: bool = False,
        place: Callable[[str], Any],
    ) -> Any:
        """`place` gives the torch.device of a new tensor by its name."""
        passed_over = _PassedOver() if fall_back else None
        planned = partial(
            _tree.plan_restore,
            tree=tree,
            describe=tree_tensors.stored,
            empty=tree_tensors.empty,
            place=place,
            partial=not strict,
            cast=cast,
        )
        gone: NotFound | None = None
        # A rank that does not see the choice ends this itself, after group_timeout; `again` is for choices that change.
        again = Again(_PATIENCE if self._ranks.world == 1 else 2 * self._ranks.timeout)
        unseen = LateChoice(self._ranks.rank, self._ranks.timeout)
        late: DeadlineExceeded | None = None
        # The tree's tensors into which damaged checkpoints were read, each with one's path.
        overwritten: dict[str, str] = {}
        try:
            self.wait_for_saves(step, folder)
        except DeadlineExceeded as waited:
            late = waited
        while True:
            with contextlib.ExitStack() as holds:
                wait = partial(again.wait, gone) if gone else None
                chosen, mine = self._choose_together(step, folder, passed_over, holds, late, wait)
                asked = _asked(step, folder, fall_back)
                plan, errors = self._restore_chosen(
                    chosen, mine, asked, folder, tree, planned, progress, holds, late, unseen, overwritten
                )
            if plan is not None and not errors:
                if not strict and plan.one_sided:
                    _log.warning("restored %s in part: %s", chosen["path"], "; ".join(plan.one_sided))
                plan.casts.log(chosen["path"])
                for remark in plan.remarks:
                    _log.warning("restored %s: %s", chosen["path"], remark)
                return plan.finish()
            rank, error = min(errors.items(), key=lambda at: (_precedence(at[1]), at[0]))
            gone = error if isinstance(error, NotFound) else None
            if isinstance(error, Corrupt) and passed_over is not None:
                who = (
                    self._who(rank) if rank == self._ranks.rank else ""
                )  # Another rank's error begins with its number.
                passed_over.add(f"{chosen['path']}: {who}{error}", error, chosen["attempt"])
                if plan is not None:
                    overwritten |= dict.fromkeys(plan.in_place, chosen["path"])
            elif gone is None:
                del errors  # Their tracebacks would keep the tree alive.
                raise error

    def _choose_together(
        self,
        step: int | None,
        folder: str,
        passed_over: _PassedOver | None,
        holds: contextlib.ExitStack,
        late: DeadlineExceeded | None,
        wait: Callable[[], None] | None,
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Rank 0's choice; and, on rank 0, the details of the checkpoint, which it holds from here on. `wait` is called
        before, on rank 0."""
        mine: dict[str, Any] | None = None
        asked = _asked(step, folder, passed_over is not None)

        def choose() -> dict[str, Any]:
            nonlocal mine
            if late is not None:
                raise late
            if wait is not None:
                wait()
            mine = self.choose(step, folder, None if passed_over is None else passed_over.attempts)
            holds.enter_context(mine["hold"])
            return {key: mine[key] for key in ("step", "attempt", "path", "passed_over")} | {"asked": asked}

        try:
            chosen = self._ranks.agree("choice", choose)
        except Corrupt as error:
            raise (passed_over and passed_over.first) or error from None
        if passed_over is not None:
            for reason in chosen["passed_over"]:
                passed_over.add(self._who(0) + reason, Corrupt(reason))
        return chosen, mine

    def _restore_chosen(
        self,
        chosen: dict[str, Any],
        mine: dict[str, Any] | None,
        asked: str,
        folder: str,
        tree: Any,
        planned: Callable[..., _tree.Plan],
        progress: _Progress,
        holds: contextlib.ExitStack,
        late: DeadlineExceeded | None,
        unseen: LateChoice,
        overwritten: Mapping[str, str],
    ) -> tuple[_tree.Plan | None, dict[int, Exception]]:
        """The plan, whose tensors have been read, and the errors of all ranks."""

        def look() -> tuple[dict[str, Any], _tree.Plan, tree_tensors.TargetCollector, bool | None]:
            details = mine
            if late is not None:
                raise late
            if chosen["asked"] != asked:
                raise InvalidArgument(f"restore: expected {chosen['asked']}, as on rank 0; found {asked}")
            if details is None:
                try:
                    details = self.choose(None if folder else chosen["step"], folder)
                    holds.enter_context(details["hold"])
                    _expect_same(chosen, details)
                except (NotFound, Corrupt) as error:  # Rank 0 has read its manifest, and holds it.
                    raise unseen.missed(chosen, error) from error
            view = self._own_view(details, tree)
            targets = tree_tensors.TargetCollector(view.saved)
            plan = planned(view.text, view.saved, match_all=targets.match_all, where=details["path"])
            _refuse_mixture(overwritten, plan, details["path"])
            for name, tensor in plan.tensors.items():
                targets.add(name, tensor)
            targets.check_shared(plan.converted, view.tied, details["path"])
            _refuse_two_in_one(plan, view.tied, details["path"])
            return details, plan, targets, self._page_cache(view, plan.tensors)

        found, errors = self._ranks.outcomes("choice found", look)
        if found is None or errors:
            return None, errors
        details, plan, targets, page_cache = found

        def read() -> None:
            targets.note_writes(plan.tensors.values())
            _expect_same(details, self._read_targets(details, targets.core, True, folder, progress, page_cache))
            plan.convert()

        return plan, self._ranks.outcomes("restore", read)[1]

    def _own_view(self, details: dict[str, Any], tree: Any) -> replicas.RankView:
        rank, world = self._ranks.rank, self._ranks.world

        def part(of: int | None, names: list[str]) -> dict[str, Any]:
            return _expect_same(details, self._core.inspect_part(details["path"], of, names))

        return replicas.rank_view(
            details | part(replicas.own_shard(details, rank, world), []),
            rank,
            world,
            self._replicated,
            like=tree,
            find=lambda names: part(None, names)["tensors"] if names else [],
        )

    def _page_cache(self, view: replicas.RankView, tensors: Mapping[str, Any]) -> bool | None:
        """Whether other ranks of this node read much of the same. None, without a group: as the engine expects it."""
        if self._ranks.world == 1:
            return None
        return self._core.stats()["ranks_of_node"] > 1 and view.replicated_in(tensors)

    def _who(self, rank: int) -> str:
        return f"rank {rank}: " if self._ranks.world > 1 else ""

    def newest_undamaged(self) -> int | None:
        """The step of the newest checkpoint in which every byte is good; None if there is no checkpoint."""
        passed_over = _PassedOver()
        again = Again(_PATIENCE)
        while True:
            try:
                details = self._core.choose(None, "", passed_over.attempts)
            except NotFound:
                return None
            except Corrupt as error:
                raise passed_over.first or error from None
            for reason in details["passed_over"]:
                passed_over.add(reason, Corrupt(reason))
            with details["hold"]:
                try:
                    self._core.verify(None, details["path"], None)
                    return int(details["step"])
                except Corrupt as error:
                    passed_over.add(f"{details['path']}: {error}", error, details["attempt"])
                except NotFound as gone:
                    again.wait(gone)

    def load(
        self,
        step: int | None,
        names: str | Sequence[str] | None,
        lazy: bool,
        folder: str,
        progress: _Progress,
        place: Callable[[str], Any],
    ) -> Any:
        details = self.inspect_all(step, folder)
        with details["hold"]:
            return self._load(details, names, lazy, folder, progress, place)

    def _load(
        self,
        details: dict[str, Any],
        names: str | Sequence[str] | None,
        lazy: bool,
        folder: str,
        progress: _Progress,
        place: Callable[[str], Any],
    ) -> Any:
        asked = () if names is None else _matching(details["tensors"].names(), names, details["path"])
        view = replicas.rank_view(details, self._ranks.rank, self._ranks.world, self._replicated, wanted=asked)
        saved, kinds = view.saved, _tree.kinds(view.text)
        wanted = list(saved) if names is None else _matching(list(saved), names, details["path"])
        made: dict[tuple[str, str], Any] = {}  # Tied tensors are one tensor, which is read once.
        tensors, reads = {}, {}

        def read(name: str, kind: str) -> Any:
            tensor = tree_tensors.empty(saved[name].of_kind(kind), kind.partition(" ")[0], place(name))
            self._read(details, view, {name: tensor}, folder, None)
            return tensor

        for name in wanted:
            key = view.tied.get(name, name), kinds.get(name, "torch")
            if key not in made:
                of = saved[name].of_kind(key[1])
                made[key] = reads[name] = (
                    LazyTensor(name, of.dtype, of.shape, partial(read, name, key[1]))
                    if lazy
                    else tree_tensors.empty(of, key[1].partition(" ")[0], place(name))
                )
            tensors[name] = made[key]
        if not lazy:
            self._read(details, view, reads, folder, progress)
        return tensors if names is not None else _tree.build(view.text, tensors)

    def choose(self, step: int | None, folder: str = "", damaged: list[str] | None = None) -> dict[str, Any]:
        """The manifest of the checkpoint to read, and "hold", which keeps it in place until its release. Waits for saves
        in flight.

        `damaged` are attempts to pass over. If it is given, manifests that do not verify are passed over too.
        """
        self.wait_for_saves(step, folder)
        return self._core.choose(step, folder, damaged)

    def inspect_all(self, step: int | None, folder: str = "") -> dict[str, Any]:
        """The same, with the contents of all shards' headers."""
        again = Again(_PATIENCE)
        while True:
            details = self.choose(step, folder)
            try:
                return details | _expect_same(details, self._core.inspect(details["path"]))
            except NotFound as gone:
                details["hold"].release()
                again.wait(gone)
            except Error:
                details["hold"].release()
                raise

    def _read(
        self,
        details: dict[str, Any],
        view: replicas.RankView,
        tensors: dict[str, Any],
        folder: str,
        progress: _Progress,
    ) -> None:
        views = [tree_tensors.target_view(name, tensor) for name, tensor in tensors.items()]
        page_cache = self._page_cache(view, tensors)
        self.read_views(details, views, False, folder=folder, progress=progress, page_cache=page_cache)

    def read_views(
        self,
        details: dict[str, Any],
        views: Sequence[_core.Tensor | _core.TensorPart],
        resume: bool,
        *,
        folder: str = "",
        progress: _Progress = None,
        page_cache: bool | None = None,
    ) -> None:
        """`page_cache` None: where the engine expects that other ranks of this node read the same."""
        targets = _core.TreeTensors(None)
        for view in views:
            targets.add(view[:7], view[7] if len(view) > 7 else None, None)
        restored = self._read_targets(details, targets, resume, folder, progress, page_cache)
        if restored["attempt"] != details["attempt"]:
            raise FailedPrecondition(f"step {details['step']} was replaced while it was being restored: restore again")

    def _read_targets(
        self,
        details: dict[str, Any],
        targets: _core.TreeTensors,
        resume: bool,
        folder: str,
        progress: _Progress,
        page_cache: bool | None = None,
    ) -> dict[str, Any]:
        streams = tree_tensors.current_streams(targets.cuda_devices)
        own = details["world"] == self._ranks.world
        which = None if folder else details["step"]
        return self._core.restore(which, folder, targets, streams, resume, own, page_cache, progress)


def _refuse_mixture(overwritten: Mapping[str, str], plan: _tree.Plan, path: str) -> None:
    """InvalidArgument if a part of a damaged checkpoint would stay in the tree beside what an older one, at `path`, has."""
    stays = [name for name in overwritten if name not in plan.tensors]
    if stays:
        raise InvalidArgument(
            f"{path} lacks {listed([*map(readable, stays)])}, into which a part of a damaged checkpoint was read: "
            f"{overwritten[stays[0]]}. The tree would have values of both: restore {path} into a new tree"
        )


def _refuse_two_in_one(plan: _tree.Plan, tied: Mapping[str, str], path: str) -> None:
    """InvalidArgument if one object of the tree would get the states of two objects of the checkpoint. `tied` as for
    check_shared."""
    for first, second in plan.twice:
        for name in plan.tensors:
            if name.startswith(f"{second}/"):
                other = first + name[len(second) :]
                if tied.get(name, name) != tied.get(other, other):
                    raise InvalidArgument(
                        f"{path}: {readable(first)} and {readable(second)} are one object in the tree, and two in the "
                        "checkpoint: restore one of them"
                    )


def _asked(step: int | None, folder: str, fall_back: bool) -> str:
    what = "a folder" if folder else "the newest" if step is None else f"step {step}"
    return what + (" with fall_back" if fall_back else "")


def _expect_same(chosen: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Returns `found` if it is the chosen attempt; else raises NotFound, because the chosen one is gone."""
    if found["attempt"] != chosen["attempt"]:
        raise NotFound(
            f"{found.get('path', chosen['path'])}: expected attempt {chosen['attempt']}, found {found['attempt']}: it was "
            "replaced meanwhile, or it is a copy of another checkpoint"
        )
    return found


def _precedence(error: Exception) -> int:
    """Which of several ranks' errors counts, lowest first: one that ends the search, then NotFound, then Corrupt, which
    may be the result of a removal."""
    return 2 if isinstance(error, Corrupt) else 1 if isinstance(error, NotFound) else 0


def _matching(stored: list[str], names: str | Sequence[str], path: str) -> list[str]:
    known = set(stored)

    def matched(pattern: str) -> list[str]:
        if pattern in known and not set("*?[") & set(pattern):
            return [pattern]
        return [one for one in stored if one == pattern or fnmatchcase(one, pattern)]

    wanted = dict.fromkeys(
        name
        for pattern in ([names] if isinstance(names, str) else names)
        for name in (matched(pattern) or _raise_not_found(f'no tensor in {path} matches "{pattern}"'))
    )
    return list(wanted)


def _raise_not_found(message: str) -> list[str]:
    raise NotFound(message)
