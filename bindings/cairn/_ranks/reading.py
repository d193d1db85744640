"""What a Checkpointer reads: checkpoints into the caller's tree, or into tensors of its own.

A restore, in a group of ranks or alone:
  1. Rank 0 chooses by manifests alone, and tells the others which attempt.
  2. Each rank finds that one, holds it, and looks at its own part: what its shard's header says, and what is replicated.
     Nothing is read into before every rank has its tree planned.
  3. Each rank reads its part, verified on the way, and says how that went. It is restored if it is on all of them.
An attempt that is Corrupt on any rank is passed over by all of them, where an older one is permitted; one that a rank
does not find any more (NotFound) is chosen anew. Any other error ends it on all ranks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from .. import _core, _tree
from .._errors import Corrupt, Error, FailedPrecondition, InvalidArgument, NotFound
from .._tree import tensors as tree_tensors
from .._tree.tensors import LazyTensor
from . import replicas
from .agreement import Ranks

_log = logging.getLogger("cairn")
_Progress = Callable[[int, int], None] | None
_CHOICES = 10  # How often a choice is made anew because what was chosen is gone when it is looked at, or read.


@dataclass
class _PassedOver:
    """What one search for an undamaged checkpoint has found to be damaged."""

    attempts: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    first: Corrupt | None = None

    def add(self, reason: str, error: Corrupt, attempt: str = "") -> None:
        """By its attempt, unless its manifest does not tell."""
        if reason not in self.reasons:
            _log.warning("passed over: %s", reason)
        self.reasons.add(reason)
        self.attempts += [attempt] if attempt else []
        self.first = self.first or error.with_traceback(None)


class Reading:
    """See Checkpointer.restore and load. An empty `folder` is the root's checkpoint of that step."""

    def __init__(self, core: _core.Checkpointer, ranks: Ranks, replicated: replicas.Rules) -> None:
        self._core, self._ranks, self._replicated = core, ranks, replicated

    def restore(self, tree: Any, step: int | None, folder: str, fall_back: bool, progress: _Progress) -> Any:
        passed_over = _PassedOver() if fall_back else None
        gone = 0
        while True:
            with contextlib.ExitStack() as holds:
                chosen, mine = self._choose_together(step, folder, passed_over, holds)
                asked = _asked(step, folder, fall_back)
                plan, errors = self._restore_chosen(chosen, mine, asked, folder, tree, progress, holds)
            if plan is not None and not errors:
                return plan.finish()
            rank, error = min(errors.items(), key=lambda at: (_weight(at[1]), at[0]))
            if isinstance(error, NotFound):
                gone += 1
                if gone > _CHOICES:
                    del errors
                    raise FailedPrecondition(f"chosen {gone} times, and not found each time: {error}") from error
            elif isinstance(error, Corrupt) and passed_over is not None:
                who = self._who(rank) if rank == self._ranks.rank else ""  # Another's begins with it.
                passed_over.add(f"{chosen['path']}: {who}{error}", error, chosen["attempt"])
            else:
                del errors  # Which would keep the tree alive, by way of their own tracebacks.
                raise error

    def _choose_together(
        self, step: int | None, folder: str, passed_over: _PassedOver | None, holds: contextlib.ExitStack
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Rank 0's choice, and what rank 0 itself has of it: it holds it from here on."""
        mine: dict[str, Any] | None = None
        asked = _asked(step, folder, passed_over is not None)

        def choose() -> dict[str, Any]:
            nonlocal mine
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
        progress: _Progress,
        holds: contextlib.ExitStack,
    ) -> tuple[_tree.Plan | None, dict[int, Exception]]:
        """What has been read, and the errors of all ranks."""

        def look() -> tuple[dict[str, Any], _tree.Plan, list[_core.Tensor]]:
            details = mine
            if chosen["asked"] != asked:
                raise InvalidArgument(f"restore: expected {chosen['asked']}, as on rank 0; found {asked}")
            if details is None:
                details = self.choose(None if folder else chosen["step"], folder)
                holds.enter_context(details["hold"])
                _expect_same(chosen, details)
            view = self._look_at_own(details, tree)
            plan = _tree.plan_restore(view.text, view.saved, tree, tree_tensors.stored, tree_tensors.empty)
            return details, plan, [tree_tensors.target(name, tensor) for name, tensor in plan.tensors.items()]

        found, errors = self._ranks.outcomes("choice found", look)
        if found is None or errors:
            return None, errors
        details, plan, views = found
        read = partial(self._read_views, details, views, True, folder, progress)
        return plan, self._ranks.outcomes("restore", lambda: _expect_same(details, read()))[1]

    def _look_at_own(self, details: dict[str, Any], tree: Any) -> replicas.View:
        rank, world = self._ranks.rank, self._ranks.world

        def part(of: int | None, names: list[str]) -> dict[str, Any]:
            return _expect_same(details, self._core.inspect_part(details["path"], of, names))

        return replicas.view(
            details | part(replicas.own_shard(details, rank, world), []),
            rank,
            world,
            self._replicated,
            like=tree,
            find=lambda names: part(None, names)["tensors"] if names else [],
        )

    def _who(self, rank: int) -> str:
        return f"rank {rank}: " if self._ranks.world > 1 else ""

    def newest_undamaged(self) -> int | None:
        """The step of the newest checkpoint of which every byte is good; None where there is no checkpoint."""
        passed_over = _PassedOver()
        gone = 0
        while True:
            try:
                details = self.choose(None, "", passed_over.attempts)
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
                except NotFound:
                    if gone == _CHOICES:
                        raise
                    gone += 1

    def load(
        self, step: int | None, names: str | Sequence[str] | None, lazy: bool, folder: str, progress: _Progress
    ) -> Any:
        details = self.look_at_all(step, folder)
        with details["hold"]:
            return self._load(details, names, lazy, folder, progress)

    def _load(
        self, details: dict[str, Any], names: str | Sequence[str] | None, lazy: bool, folder: str, progress: _Progress
    ) -> Any:
        stored = [name for name, *_ in details["tensors"]]
        asked = () if names is None else _matching(stored, names, details["path"])
        view = replicas.view(details, self._ranks.rank, self._ranks.world, self._replicated, wanted=asked)
        saved, kinds = view.saved, _tree.kinds(view.text)
        wanted = list(saved) if names is None else _matching(list(saved), names, details["path"])
        made: dict[tuple[str, str], Any] = {}  # Tied tensors are one, and read once.
        tensors, reads = {}, {}

        def read(name: str, kind: str) -> Any:
            tensor = tree_tensors.empty(saved[name], kind)
            self._read(details, {name: tensor}, folder, None, False)
            return tensor

        for name in wanted:
            key = view.tied.get(name, name), kinds.get(name, "torch")
            if key not in made:
                of = saved[name]
                made[key] = reads[name] = (
                    LazyTensor(name, of.dtype, of.shape, partial(read, name, key[1]))
                    if lazy
                    else tree_tensors.empty(of, key[1])
                )
            tensors[name] = made[key]
        if not lazy:
            self._read(details, reads, folder, progress, False)
        return tensors if names is not None else _tree.build(view.text, tensors)

    def choose(self, step: int | None, folder: str = "", damaged: list[str] | None = None) -> dict[str, Any]:
        """What is to be read, by its manifest, and "hold", until whose release it stays where it is.

        With `damaged`, attempts that are known to be so, these are passed over, as are manifests that do not verify.
        """
        return self._core.choose(step, folder, damaged)

    def look_at_all(self, step: int | None, folder: str = "") -> dict[str, Any]:
        """The same, and all that the headers of all shards say."""
        gone = 0
        while True:
            details = self.choose(step, folder)
            try:
                return details | _expect_same(details, self._core.inspect(details["path"]))
            except Error as error:
                details["hold"].release()
                if gone == _CHOICES or not isinstance(error, NotFound):
                    raise
                gone += 1

    def _read(
        self,
        details: dict[str, Any],
        tensors: dict[str, Any],
        folder: str,
        progress: _Progress,
        resume: bool,
    ) -> None:
        views = [tree_tensors.target(name, tensor) for name, tensor in tensors.items()]
        self.read_views(details, views, resume, folder=folder, progress=progress)

    def read_views(
        self,
        details: dict[str, Any],
        views: Sequence[_core.Tensor | _core.TensorPart],
        resume: bool,
        *,
        folder: str = "",
        progress: _Progress = None,
    ) -> None:
        restored = self._read_views(details, views, resume, folder, progress)
        if restored["attempt"] != details["attempt"]:
            raise FailedPrecondition(f"step {details['step']} was replaced while it was being restored: restore again")

    def _read_views(
        self,
        details: dict[str, Any],
        views: Sequence[_core.Tensor | _core.TensorPart],
        resume: bool,
        folder: str,
        progress: _Progress,
    ) -> dict[str, Any]:
        streams = tree_tensors.current_streams({view[5] for view in views if view[5] >= 0})
        own = details["world"] == self._ranks.world
        return self._core.restore(None if folder else details["step"], folder, views, streams, resume, own, progress)


def _asked(step: int | None, folder: str, fall_back: bool) -> str:
    what = "a folder" if folder else "the newest" if step is None else f"step {step}"
    return what + (" with fall_back" if fall_back else "")


def _expect_same(chosen: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What was found, if it is of the attempt that was chosen; else that one is gone."""
    if found["attempt"] != chosen["attempt"]:
        raise NotFound(
            f"{found.get('path', chosen['path'])}: expected attempt {chosen['attempt']}, found {found['attempt']}: replaced meanwhile, or another"
            " checkpoint's copy"
        )
    return found


def _weight(error: Exception) -> int:
    """Which of several ranks' errors counts: the one that ends the search, then that it is gone, last its damage, which
    may come of its being removed."""
    return 2 if isinstance(error, Corrupt) else 1 if isinstance(error, NotFound) else 0


def _matching(stored: list[str], names: str | Sequence[str], path: str) -> list[str]:
    wanted = dict.fromkeys(
        name
        for pattern in ([names] if isinstance(names, str) else names)
        for name in (
            [one for one in stored if one == pattern or fnmatchcase(one, pattern)]
            or _nothing(f'no tensor "{pattern}" in {path}')
        )
    )
    return list(wanted)


def _nothing(message: str) -> list[str]:
    raise NotFound(message)
