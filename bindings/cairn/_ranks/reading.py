"""How a Checkpointer reads checkpoints: into the caller's tree (restore), or into new tensors (load).

A reader waits first for the saves of this process that it would read (see _in_flight). How the ranks of a group restore
one checkpoint together is in src/api/shared_restore.h: here each rank plans what it reads, its own part and what is
replicated. No tensor is written before every rank has planned its tree.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from .. import _core, _in_flight, _tree
from .._arguments import texts
from .._errors import Error, FailedPrecondition, InvalidArgument, NotFound
from .._tree import tensors as tree_tensors
from .._tree.paths import listed, readable
from .._tree.tensors import LazyTensor
from . import replicas
from .agreement import Ranks

_log = logging.getLogger("cairn")
_Progress = Callable[[int, int], None] | None


class Reading:
    """See Checkpointer.restore and load. An empty `folder` is the root's checkpoint of that step. It waits for saves in
    flight up to `timeout` seconds."""

    def __init__(
        self, core: _core.Checkpointer, ranks: Ranks, replicated: replicas.Rules, root: str, timeout: float
    ) -> None:
        self._core, self._ranks, self._replicated = core, ranks, replicated
        self._root, self._timeout = root, timeout
        self._counting = threading.local()

    @contextlib.contextmanager
    def counted(self, whole: bool = True) -> Iterator[None]:
        """Around what a user asks for as one restore, or load: the metrics count it once, as done or failed, whatever it
        calls within. A part of it, not the `whole`, counts if it fails."""
        if getattr(self._counting, "is_on", False):
            yield
            return
        self._counting.is_on, done = True, False
        try:
            yield
            done = True
        finally:
            self._counting.is_on = False
            with contextlib.suppress(Error):  # It is closed.
                if whole or not done:
                    self._core.count_restore(done)

    def wait_for_saves(self, step: int | None, folder: str = "") -> None:
        """Waits for the saves of this process that a reader would read. Raises DeadlineExceeded."""
        _in_flight.wait_for(self._root, step, folder, self._timeout, self._core)

    def refuse(self, why: BaseException, step: int | None = None, folder: str = "") -> None:
        """In place of `restore` or `restore_planned`, where this rank's arguments are wrong: the other ranks wait for it."""

        def plan(_: dict[str, Any]) -> _core.ReadPlan:
            raise why

        if self._ranks.world > 1:
            with contextlib.suppress(Exception):
                self._core.restore(step, folder, False, lambda: None, plan, None)

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
        planned: list[tuple[_tree.Plan, str]] = []  # The last one, and the path of its checkpoint.
        overwritten: dict[str, str] = {}  # The tree's tensors that were written, each with the path of what was read.

        def plan_read(chosen: dict[str, Any]) -> _core.ReadPlan:
            planned.clear()
            view = self._own_view(chosen, tree)
            targets = tree_tensors.TargetCollector(view.saved)
            plan = _tree.plan_restore(
                view.text,
                view.saved,
                tree,
                tree_tensors.stored,
                tree_tensors.empty,
                place=place,
                partial=not strict,
                cast=cast,
                match_all=targets.match_all,
                where=chosen["path"],
            )
            _refuse_mixture(overwritten, plan, chosen["path"])
            for name, tensor in plan.tensors.items():
                targets.add(name, tensor)
            targets.check_shared(plan.converted, view.tied, chosen["path"])
            _refuse_two_in_one(plan, view.tied, chosen["path"])
            planned.append((plan, chosen["path"]))
            return (
                targets.core,
                tree_tensors.current_streams(targets.core.cuda_devices),
                chosen["world"] == self._ranks.world,
                self._page_cache(view, plan.tensors),
                partial(self._begin, targets, plan, overwritten, chosen["path"]),
                plan.convert,
            )

        self._core.restore(step, folder, fall_back, partial(self.wait_for_saves, step, folder), plan_read, progress)
        [(plan, path)] = planned
        if not strict and plan.one_sided:
            _log.warning("restored %s in part: %s", path, "; ".join(plan.one_sided))
        plan.casts.log(path)
        for remark in plan.remarks:
            _log.warning("restored %s: %s", path, remark)
        return plan.finish()

    def restore_planned(
        self, step: int | None, folder: str, plan: Callable[[dict[str, Any]], _core.ReadPlan], alone: bool
    ) -> None:
        """Reads what each rank plans of the checkpoint that rank 0 chooses. `alone`: this rank without the others."""
        if not alone:
            self._core.restore(step, folder, False, partial(self.wait_for_saves, step, folder), plan, None)
            return
        chosen = self.choose(step, folder)
        with chosen["hold"]:
            targets, streams, own, page_cache, begin, finish = plan(chosen)
            begin()
            self._read_targets(chosen, targets, streams, True, folder, own, page_cache, None)
            finish()

    def inspect_part(self, chosen: dict[str, Any], rank: int | None, names: list[str]) -> dict[str, Any]:
        """What the header of a rank's shard has, and tensors of these names. NotFound if the checkpoint is gone."""
        return _expect_same(chosen, self._core.inspect_part(chosen["path"], rank, names))

    def inspect_chosen(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """What the headers of all shards have."""
        return _expect_same(chosen, self._core.inspect(chosen["path"]))

    def _begin(
        self, targets: tree_tensors.TargetCollector, plan: _tree.Plan, overwritten: dict[str, str], path: str
    ) -> None:
        """Every rank has planned: from now on tensors are written."""
        overwritten |= dict.fromkeys(plan.in_place, path)
        targets.note_writes(plan.tensors.values())

    def _own_view(self, details: dict[str, Any], tree: Any) -> replicas.RankView:
        rank, world = self._ranks.rank, self._ranks.world

        part = partial(self.inspect_part, details)
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

    def newest_undamaged(self) -> int | None:
        """The step of the newest checkpoint in which every byte is good; None if there is no checkpoint."""
        try:
            return self._core.verify_newest()
        except NotFound:
            return None

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
            asked = () if names is None else _matching(details["tensors"].names(), names, details["path"])
            view = replicas.rank_view(details, self._ranks.rank, self._ranks.world, self._replicated, wanted=asked)
            parsed = _tree.Parsed(view.text)
            saved, kinds = view.saved, _tree.kinds(parsed)
            wanted = list(saved) if names is None else _matching(list(saved), names, details["path"])
            made: dict[tuple[str, str], Any] = {}  # Tied tensors are one tensor, which is read once.
            tensors, reads = {}, {}

            def read(name: str, kind: str) -> Any:
                with self.counted():
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
            return tensors if names is not None else _tree.build(parsed, tensors)

    def choose(self, step: int | None, folder: str = "") -> dict[str, Any]:
        """The manifest of the checkpoint to read, and "hold", which keeps it in place until its release. Waits for saves
        in flight."""
        self.wait_for_saves(step, folder)
        return self._core.choose(step, folder, False)

    def inspect_all(self, step: int | None, folder: str = "") -> dict[str, Any]:
        """The same, with the contents of all shards' headers."""
        self.wait_for_saves(step, folder)
        return self._core.choose(step, folder, True)

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
        targets = self.targets_of(views)
        streams = tree_tensors.current_streams(targets.cuda_devices)
        own = details["world"] == self._ranks.world
        self._read_targets(details, targets, streams, resume, folder, own, page_cache, progress)

    def targets_of(self, views: Sequence[_core.Tensor | _core.TensorPart]) -> _core.TreeTensors:
        targets = _core.TreeTensors(None)
        for view in views:
            targets.add(view[:7], view[7] if len(view) > 7 else None, None)
        return targets

    def _read_targets(
        self,
        details: dict[str, Any],
        targets: _core.TreeTensors,
        streams: _core.Streams,
        resume: bool,
        folder: str,
        own: bool,
        page_cache: bool | None,
        progress: _Progress,
    ) -> None:
        which = None if folder else details["step"]
        restored = self._core.read(which, folder, targets, streams, resume, own, page_cache, progress)
        if restored["attempt"] != details["attempt"]:
            raise FailedPrecondition(f"step {details['step']} was replaced while it was being restored: restore again")


def _refuse_mixture(overwritten: Mapping[str, str], plan: _tree.Plan, path: str) -> None:
    """InvalidArgument if a part of a damaged checkpoint, or of one that is gone, would stay in the tree beside what
    another one, at `path`, has."""
    stays = [name for name in overwritten if name not in plan.tensors]
    if stays:
        raise InvalidArgument(
            f"{path} lacks {listed([*map(readable, stays)])}, into which a part of another checkpoint was read: "
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


def _expect_same(chosen: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Returns `found` if it is the chosen attempt; else raises NotFound, because the chosen one is gone."""
    if found["attempt"] != chosen["attempt"]:
        raise NotFound(
            f"{found.get('path', chosen['path'])}: expected attempt {chosen['attempt']}, found {found['attempt']}: it was "
            "replaced meanwhile, or it is a copy of another checkpoint"
        )
    return found


def _matching(stored: list[str], names: str | Sequence[str], path: str) -> list[str]:
    known = set(stored)

    def matched(pattern: str) -> list[str]:
        if pattern in known and not set("*?[") & set(pattern):
            return [pattern]
        return [one for one in stored if one == pattern or replicas.matches((pattern,), one)]

    wanted = dict.fromkeys(
        name
        for pattern in texts("names", names)
        for name in (matched(pattern) or _raise_not_found(f'no tensor in {path} matches "{pattern}"'))
    )
    return list(wanted)


def _raise_not_found(message: str) -> list[str]:
    raise NotFound(message)
