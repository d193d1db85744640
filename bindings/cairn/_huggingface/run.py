"""What one call of Trainer.train keeps track of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .. import _tree
from .._best import KINDS
from .._checkpointer import Checkpointer
from .._errors import FailedPrecondition, NotFound, unless_disk_hangs
from .._ranks import replicas as replication
from .._ranks.replicas import Rules
from .._save import Save
from .._tree.frozen import FrozenNames
from .._tree.optimizer_loads import Known
from .._tree.paths import listed, part_of
from .._tree.tensors import TensorCollector
from . import sharded
from .contents import RANK, TRAINER, tied_names
from .model_folder import Companions, Content, Files, weight_index

_log = logging.getLogger("cairn")

# Everything is identical on all ranks but what is below RANK.
REPLICATED = Rules(under=("",), but=(RANK,))


class Run:
    """One call of train(): its checkpointer, what it resumes from, and which saves are in flight."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        options: dict[str, Any],
        folder: str,
        companions: Companions,
        is_sharded: bool,
    ) -> None:
        self.checkpointer = checkpointer
        self.keep_last: int = options["keep_last"]
        self.keep_every: int = options.get("keep_every", 0)
        self.folder = folder  # Represents the checkpoint in Trainer's calls; holds trainer_state.json.
        self.companions = companions
        # What is kept in memory is its shards alone.
        self.has_files: bool = options.get("memory") is None
        self.sharded = is_sharded
        self.step: int | None = None
        self.source = ""  # The folder of a checkpoint outside the root.
        self.resumes = False
        self.restored: dict[str, Any] = {}
        self.known = Known()  # Of the optimizer in what it resumes from.
        self.steps = set(checkpointer.steps())  # What this run may pin: not those after the one it resumes from.
        self.saves: dict[int, Save] = {}  # Those that may not have ended.
        self.newest: Save | None = None
        self.order: list[int] = []  # Steps saved by this run.
        self.pinned: int | None = None
        self._frozen = FrozenNames()
        self._told = False  # That the checkpoints are no model folders.

    def take(self, part: str) -> Any:
        if part not in self.restored:
            raise NotFound(f"the checkpoint's {part} was not restored, or has been used already")
        return self.restored.pop(part)

    def check(self) -> None:
        """Raises a failure in the background, but not that the disk hangs: training goes on."""
        unless_disk_hangs(self.companions.check)
        unless_disk_hangs(self.checkpointer.check)

    def save(
        self,
        step: int,
        gather: Callable[[], tuple[dict[str, Any], Files, frozenset[str]]],
        buffers: Sequence[str],
        ties: Collection[str] | None,
    ) -> None:
        """Starts the save of a tree of the form in `contents`, with the files beside it; it links what is frozen. `gather`
        runs within, so that its error reaches the ranks that would wait for this one. Of the model's `buffers` rank 0's
        count. `ties` are the names that from_pretrained ties to others, if the model's class says so."""
        files: dict[str, Content] = {}
        replicas: Any = None

        def fill(tensors: TensorCollector) -> list[tuple[str, str]]:
            nonlocal replicas
            tree, more, frozen = gather()
            weights = {name: value for name, value in tree.items() if name not in (TRAINER, RANK)}
            text = _tree.flatten(tree, tensors)
            if frozen:
                self._frozen = self._frozen.now(frozenset(part_of(name, "") for name in frozen))
                unmatched = partial(replication.unmatched, text=text)
                self.checkpointer._engine.freeze(tensors, self._frozen, tree, unmatched)
            values, (shared, first, identical) = self.checkpointer._engine.replica_arguments(
                step, tree, text, tensors, buffers=buffers
            )
            # The index that names their file is written before it is known who writes what else.
            of_rank_0 = [name for name in shared if not name.startswith(f"{TRAINER}/")]
            replicas = [name for name in shared if name.startswith(f"{TRAINER}/")], first + of_rank_0, identical
            files.update(more)
            if more:
                adapter = "adapter_config.json" in more
                tied = tied_names(weights)
                if ties is None or adapter or tied <= {*ties}:
                    files.update(weight_index(weights, tied, "shard-00000.safetensors", adapter, bool(frozen)))
                elif not self._told:
                    self._told = True
                    _log.warning(
                        "%s: weights share memory, but the model's config does not tie them (%s): from_pretrained would give "
                        "them other values, so it cannot read the checkpoints; an export has each",
                        self.checkpointer.root, listed(sorted(tied - {*ties})),
                    )  # fmt: skip
            return [("tree", text), *values]

        def start(replace: bool, hold: float) -> Save:
            save = self.checkpointer._engine.start(step, fill, lambda: replicas, replace=replace, hold=hold)
            self.checkpointer._engine.comparison.saved(save)
            return save

        self._start(step, start, files)

    def save_sharded(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        shared: dict[str, Any],
        own: dict[str, Any],
        read_files: Callable[[], Files],
        links: bool,
    ) -> None:
        """The same for a model that FSDP2 has sharded; without an index of the weights."""
        files: dict[str, Content] = {}

        def start(replace: bool, hold: float) -> Save:
            return sharded.start(
                self.checkpointer,
                step,
                model,
                optimizer,
                shared,
                own,
                lambda: files.update(read_files()),
                links=links,
                replace=replace,
                hold=hold,
            )

        self._start(step, start, files)

    def _start(self, step: int, start: Callable[[bool, float], Save], files: Files) -> None:
        """Starts a save by `start(replace, hold)`, which fills the files that rank 0 writes beside it."""
        if step in self.saves:
            unless_disk_hangs(self.saves[step].kept)
        leads = self.has_files and self.checkpointer.rank == 0
        if leads:
            self.companions.prepare()
        # A resumed run saves its first step again if no row of that epoch was left.
        save = start(step in {*self.order, *self.steps}, self.checkpointer._engine.group_timeout if leads else 0.0)
        if leads:
            self.companions.add(save, files)
        self.saves[step] = self.newest = save
        self.steps.add(step)
        self.order.append(step)

    def pin_best(self, best: int | None, wait: bool) -> None:
        """Pins the best model's checkpoint, and unpins the previous best."""
        ended = {step: save for step, save in self.saves.items() if save.done()}
        self.saves = {step: save for step, save in self.saves.items() if step not in ended}
        self.steps -= {step for step, save in ended.items() if save.stats["phase"] == "failed"}
        if self.keep_last == 0 or best is None or best == self.pinned or best not in self.steps:
            return
        if save := self.saves.get(best):
            # Retention reaches it only with the keep_last-th save after it.
            if not wait and not save.done() and sum(step > best for step in self.order) + 1 < self.keep_last:
                return
            save.wait()
        if self.checkpointer.rank == 0:
            try:
                self.checkpointer.pin(best)
            except NotFound as error:  # Somebody has removed it.
                _log.warning("%s: the best model's checkpoint is not pinned: %s", self.checkpointer.root, error)
            if self.pinned is not None:
                with suppress(NotFound):
                    self.checkpointer.unpin(self.pinned)
                if wait:  # No later save makes retention look at it.
                    self._remove_if_old(self.pinned)
        self.pinned = best

    def _remove_if_old(self, step: int) -> None:
        kinds = {one.step: KINDS.index(one.nonfinite) for one in self.checkpointer.checkpoints() if one.damage is None}
        kept = [*kinds][-self.keep_last :]
        last_of_its_kind = step in kinds and kinds[step] < min(kinds[one] for one in kept)
        if step not in kept and not last_of_its_kind and not (self.keep_every and step % self.keep_every == 0):
            with suppress(NotFound, FailedPrecondition):  # FailedPrecondition: somebody reads it.
                self.checkpointer.remove(step)

    def finish(self, best: int | None) -> None:
        """Returns when every save has ended; raises the first failure. A disk that hung and has answered since has
        cost no more than the saves that the log names."""
        if self.checkpointer.rank == 0:
            self.companions.finish(self.checkpointer._engine.close_timeout)
        unless_disk_hangs(self.companions.check)
        unless_disk_hangs(self.checkpointer.drain)
        unless_disk_hangs(self.checkpointer.check)
        if self.newest is not None:
            self.newest.wait()
        self.pin_best(best, wait=True)
