"""What a Checkpointer reads: checkpoints into the caller's tree, or into tensors of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from . import _core, _replicas, _tensors, _tree
from ._errors import FailedPrecondition, NotFound
from ._ranks import Ranks
from ._tensors import LazyTensor

_log = logging.getLogger("cairn")
_Progress = Callable[[int, int], None] | None


class Reading:
    """See Checkpointer.restore and load. An empty `folder` is the root's checkpoint of that step."""

    def __init__(self, core: _core.Checkpointer, ranks: Ranks, replicated: _replicas.Rules) -> None:
        self._core, self._ranks, self._replicated = core, ranks, replicated

    def restore(self, tree: Any, step: int | None, folder: str, fall_back: bool, progress: _Progress) -> Any:
        details = self._ranks.agree(
            "choice",
            lambda: self.choose(step, folder, fall_back),
            lambda chosen: self.choose(None if folder else chosen, folder, False),
        )

        def read() -> _tree.Plan:
            view = self._view(details, like=tree)
            plan = _tree.plan_restore(view.text, view.saved, tree, _tensors.stored, _tensors.empty)
            self._read(details, plan.tensors, folder, progress, True)
            return plan

        with details["hold"]:
            return self._ranks.together("restore", read).finish()

    def load(
        self, step: int | None, names: str | Sequence[str] | None, lazy: bool, folder: str, progress: _Progress
    ) -> Any:
        details = self.choose(step, folder, False)
        with details["hold"]:
            return self._load(details, names, lazy, folder, progress)

    def _load(
        self, details: dict[str, Any], names: str | Sequence[str] | None, lazy: bool, folder: str, progress: _Progress
    ) -> Any:
        stored = [name for name, *_ in details["tensors"]]
        asked = () if names is None else _matching(stored, names, details["path"])
        view = self._view(details, wanted=asked)
        saved, kinds = view.saved, _tree.kinds(view.text)
        wanted = list(saved) if names is None else _matching(list(saved), names, details["path"])
        made: dict[tuple[str, str], Any] = {}  # Tied tensors are one, and read once.
        tensors, reads = {}, {}

        def read(name: str, kind: str) -> Any:
            tensor = _tensors.empty(saved[name], kind)
            self._read(details, {name: tensor}, folder, None, False)
            return tensor

        for name in wanted:
            key = view.tied.get(name, name), kinds.get(name, "torch")
            if key not in made:
                of = saved[name]
                made[key] = reads[name] = (
                    LazyTensor(name, of.dtype, of.shape, partial(read, name, key[1]))
                    if lazy
                    else _tensors.empty(of, key[1])
                )
            tensors[name] = made[key]
        if not lazy:
            self._read(details, reads, folder, progress, False)
        return tensors if names is not None else _tree.build(view.text, tensors)

    def choose(self, step: int | None, folder: str, fall_back: bool) -> dict[str, Any]:
        """What is to be read: all but its tensors' bytes, and "hold", until whose release it stays where it is.

        With `fall_back` every byte is verified, and what is Corrupt is passed over.
        """
        details = self._core.choose(step, folder, fall_back)
        for reason in details["passed_over"]:
            _log.warning("passed over: %s", reason)
        return details

    def _view(self, details: dict[str, Any], *, like: Any = None, wanted: Sequence[str] = ()) -> _replicas.View:
        ranks = self._ranks
        return _replicas.view(details, ranks.rank, ranks.world, self._replicated, like=like, wanted=wanted)

    def _read(
        self,
        details: dict[str, Any],
        tensors: dict[str, Any],
        folder: str,
        progress: _Progress,
        resume: bool,
    ) -> None:
        views = [_tensors.target(name, tensor) for name, tensor in tensors.items()]
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
        streams = _tensors.current_streams({view[5] for view in views if view[5] >= 0})
        restored = self._core.restore(
            None if folder else details["step"], folder, False, views, streams, resume, progress
        )
        if restored["attempt"] != details["attempt"]:
            raise FailedPrecondition(f"step {details['step']} was replaced while it was being restored: restore again")


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
