"""DeepSpeed's checkpoints through Cairn: saved while training goes on, by all ranks or by none, and without pickle.

    engine, *_ = deepspeed.initialize(...)
    cairn.deepspeed.attach(engine, "checkpoints", host_memory="16GiB")
    engine.load_checkpoint("checkpoints")  # the newest that is durable
    engine.save_checkpoint("checkpoints")  # returns before the state is written

What DeepSpeed would write as one torch file is a part of one Cairn checkpoint, in the shard of the rank that holds it:

    checkpoints/
      step-00000000000000000010/   Cairn's checkpoint of global step 10
      global_step10/               DeepSpeed's folder: a small text for each file, which says where its contents are
      latest                       DeepSpeed's; `attach` sets it to the newest checkpoint that is durable

Objects of DeepSpeed's own classes (loss scalers, fragments' addresses) are kept as their plain fields. Any number of ranks
loads ZeRO's state: see _deepspeed.resized.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import shutil
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

try:
    from deepspeed.runtime.checkpoint_engine import checkpoint_engine as _engines
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
except ImportError as error:
    raise ImportError(f"cairn.deepspeed needs deepspeed 0.19: {error}") from error

from ._arguments import without_memory
from ._checkpointer import Checkpointer
from ._deepspeed import resized
from ._errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported, unless_disk_hangs
from ._memory import cloned
from ._ranks import replicas
from ._save import Save
from ._tree import tensors as tree_tensors
from ._tree.casts import Casts, allows_loss
from ._tree.optimizer_states import names_of
from ._tree.reader import Reader, kinds_in, scalar

_log = logging.getLogger("cairn")
_POINTER = '{"cairn_step": '  # What the small text files begin with.
_DRAFT = ".new"
_KIND, _FIELDS = "cairn.deepspeed", "fields"
_OBJECTS: dict[str, Any] = {kind.__name__: kind for kind in (LossScaler, DynamicLossScaler, fragment_address)}
_ENUMS: dict[str, Any] = {ZeroStageEnum.__name__: ZeroStageEnum}


def attach(
    engine: Any, save_dir: str | os.PathLike[str], *, cast: str | None = None, **options: Any
) -> CheckpointEngine:
    """Makes a DeepSpeedEngine save into `save_dir`, and load from it, through Cairn. Every rank calls it, once.

    Options are Checkpointer's (host_memory, max_in_flight, keep_last, ...). Saves are fenced before each step of the
    engine's optimizer. Call the result's `close` at the end: it waits for saves in flight and raises a failure. A load into a
    module of another dtype, which does not hold every value of the checkpoint's, is refused unless `cast` is "allow".

    Raises Unsupported for what DeepSpeed does not save through its checkpoint engine alone, with the way out.
    """
    _refuse(engine)
    without_memory(options)
    attached = CheckpointEngine(engine, os.path.abspath(save_dir), options, allows_loss(cast))
    engine.checkpoint_engine = attached
    return attached


class CheckpointEngine(_engines.CheckpointEngine):
    """What `attach` gives to DeepSpeed. `checkpointer` is the Checkpointer, for steps, verify, pin and stats."""

    def __init__(self, engine: Any, root: str, options: dict[str, Any], allow_loss: bool = False) -> None:
        super().__init__()
        self.name = "Cairn"
        self._engine, self._root, self._allow_loss = engine, root, allow_loss
        self._stock = TorchCheckpointEngine()
        self._info: Any = None
        self._folder: str | None = None  # Of the tag that is being saved.
        self._files: dict[str, Any] = {}
        self._newest: Save | None = None
        self._saving: list[Save] = []  # Those that may be in flight.
        group = torch.distributed.group.WORLD if torch.distributed.get_world_size() > 1 else None
        self.checkpointer = Checkpointer(root, group=group, **options)
        if engine.basic_optimizer is not None:
            self.checkpointer.protect(engine.basic_optimizer)
        if self.checkpointer.rank == 0:
            self._set_latest()
            self._name_for_all_ranks()
        torch.distributed.barrier()

    # DeepSpeed's calls

    def create(self, info: Any) -> None:
        """Raises the failure of an earlier save that nobody has heard of, unless the disk hung."""
        unless_disk_hangs(self.checkpointer.check)
        self._info, self._folder, self._files = info, None, {}
        if self.checkpointer.rank == 0:
            self._remove_stale()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)
        if self._info is not None and os.path.abspath(path) == self._tag_folder():
            self._folder = self._tag_folder()

    def save(self, state_dict: Any, path: str) -> None:
        """Takes one file's contents. What is no part of a checkpoint (save_16bit_model) is written by torch.save."""
        if self._folder is None and os.path.dirname(os.path.abspath(path)) != self._tag_folder():
            self._stock.save(state_dict, path)
            return
        buffers = state_dict.get("buffer_names") or ()
        if buffers and isinstance(state_dict.get("module"), dict):
            # Forward changes buffers, and only the optimizer's step after it is fenced.
            module = copy.copy(state_dict["module"])
            module.update({name: cloned(module[name]) for name in buffers if name in module})
            state_dict = {**state_dict, "module": module}
        self._files[os.path.basename(path)] = _plain(state_dict)

    def commit(self, info: Any) -> bool:
        """Starts the save of all files since `create`. They are durable together, on every rank, or not at all."""
        if self._folder is None:
            self._info = None
            return True
        if os.path.abspath(info.save_dir) != self._root:
            raise InvalidArgument(f"save_checkpoint: expected {self._root}, as given to attach, found {info.save_dir}")
        step = int(self._engine.global_steps)
        kind = type(self._engine.basic_optimizer).__name__
        tree = {"tag": str(info.tag), "latest": bool(info.save_latest), "optimizer": kind, "files": self._files}
        if again := self._newest is not None and self._newest.step == step:
            self._newest.wait()  # Another tag of the same step replaces the checkpoint: both tags lead to it.
        self._refuse_other_contents(step, str(info.tag))
        self._newest = self.checkpointer.save(step, tree, replace=again)
        self._saving = [*(save for save in self._saving if not save.done()), self._newest]
        for name in self._files:
            _write(os.path.join(self._folder, name), f"{_POINTER}{step}}}\n")
        self._info, self._folder, self._files = None, None, {}
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """The contents of one file, on the CPU, verified. A file that DeepSpeed wrote is read by DeepSpeed: unpickled."""
        step = _pointed(path)
        if step is None:
            return self._stock.load(path, map_location=map_location)
        with self.checkpointer._engine.reading.counted():
            self.checkpointer.drain()
            with _inspected(self.checkpointer, step) as details:
                trees = _trees(details)
                found = self._contents(details, trees, path)
            if isinstance(found, dict):
                self._check_dtypes(found.get("module"), path)
                self._tell_other_class(found, trees[0].get("optimizer"), path)
            return found

    def is_decoupled(self) -> bool:
        return False  # DeepSpeed would start the save only before the next step.

    def preserves_storage_sharing(self) -> bool:
        return False  # Views are kept as they are: DeepSpeed need not clone them first.

    def close(self) -> None:
        """Waits for saves in flight, sets `latest` and frees the pool; raises the first failure among the saves."""
        try:
            self.checkpointer.drain()
            self.checkpointer.check()
            if self.checkpointer.rank == 0:
                self._set_latest()
                self._remove_stale()
        finally:
            self.checkpointer.close()

    # Internal

    def _refuse_other_contents(self, step: int, tag: str) -> None:
        """InvalidArgument on all ranks if the step is saved under another tag, whose contents the save would replace by
        others. All ranks call it: retention may have gone on between their looks."""
        found = [self._other_contents(step, tag)] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, found[0])
        if other := next((one for one in found if one is not None), None):
            self._info, self._folder, self._files = None, None, {}
            raise InvalidArgument(
                f"save_checkpoint: tag {tag}: step {step} has a checkpoint under tag {other}, with other contents, which "
                f"would be lost: expected one state for a step; save into another folder, attached by itself, or call "
                f"checkpointer.remove({step}) first"
            )

    def _other_contents(self, step: int, tag: str) -> str | None:
        """The other tag, if this rank's files there differ from those to be saved. Reads them."""
        with contextlib.suppress(NotFound), _inspected(self.checkpointer, step) as details:
            trees = _trees(details)
            other: str = trees[0]["tag"]
            rank = self.checkpointer.rank
            if other == tag:
                return None
            same = rank < len(trees) and trees[rank]["files"].keys() == self._files.keys()
            for name, contents in self._files.items() if same else ():
                same = same and _same(_read(self.checkpointer, details, trees, name, resume=False), contents)
            return None if same else other
        return None

    def _contents(self, details: dict[str, Any], trees: list[Any], path: str) -> Any:
        """What the file has; of a checkpoint that another number of ranks of ZeRO saved, what it would have."""
        name = os.path.basename(path)
        model = next((one for one in trees[0]["files"] if one.endswith("mp_rank_00_model_states.pt")), None)
        if model is not None and self._engine.zero_optimization():
            ranks = trees[0]["files"][model]["dp_world_size"]
            if ranks != self._engine.seq_dp_world_size:
                return self._resized(details, trees, path, model, ranks)
        return _objects(_read(self.checkpointer, details, trees, name, resume=True))

    def _resized(self, details: dict[str, Any], trees: list[Any], path: str, model: str, ranks: int) -> Any:
        states = _outline(details, trees, model)
        resized.refuse(self._engine, states, path)
        name = resized.of_rank(os.path.basename(path), 0)

        def file(rank: int) -> Any:
            return _outline(details, trees, resized.of_rank(name, rank))

        if name.endswith("optim_states.pt"):
            plan = resized.optimizer_states(self._engine, states, [file(rank) for rank in range(ranks)], path)
        else:
            own = ranks if name != resized.of_rank(name, 1) else 0  # Below ZeRO 3 there is one file of all.
            plan = resized.model_states(self._engine, file, own, path)
            self._tell_own(details, trees, name, own)
        found = _objects(_read(self.checkpointer, details, trees, name, resume=True, plan=plan))
        plan.finish(found)
        return found

    def _tell_own(self, details: dict[str, Any], trees: list[Any], name: str, ranks: int) -> None:
        """Names what ranks have kept each for itself in this file of theirs: rank 0's is taken."""
        first = _node(details, trees, name)[1]
        others = [_node(details, trees, resized.of_rank(name, rank))[1] for rank in range(1, ranks)]
        if own := sorted({key for one in others for key in first if one.get(key) != first[key]}):
            what = ", ".join(own)
            _log.warning("%s: ranks have values of their own for %s: all take rank 0's", details["path"], what)

    def _check_dtypes(self, saved: Any, path: str) -> None:
        """InvalidArgument if DeepSpeed would narrow what it loads into the module: it converts without a word."""
        if not isinstance(saved, dict):
            return
        casts = Casts(self._allow_loss)
        for name, own in self._engine.module.state_dict().items():
            given = saved.get(name)
            if isinstance(given, torch.Tensor) and isinstance(own, torch.Tensor) and given.dtype != own.dtype:
                casts.may(name, tree_tensors.dtype_name(name, given), tree_tensors.dtype_name(name, own))
        casts.raise_refused(path)
        casts.log(path)

    def _tell_other_class(self, found: dict[str, Any], saved: str | None, path: str) -> None:
        """Whether DeepSpeed loads the state of the optimizer, nobody knows here."""
        own = type(self._engine.basic_optimizer)
        if saved in (None, *names_of(own)) or not any(found.get(key) for key in ("optimizer", "optimizer_state_dict")):
            return
        _log.warning("%s: the optimizer is %s, the checkpoint has the state of %s", path, own.__name__, saved)

    def _tag_folder(self) -> str:
        return os.path.join(os.path.abspath(self._info.save_dir), str(self._info.tag))

    def _set_latest(self) -> None:
        """Writes `latest`, and the tag's folder, for the newest durable checkpoint that a save marked as latest. A
        `latest` that names files of DeepSpeed's own stays."""
        path = os.path.join(self._root, "latest")
        if os.path.exists(path):
            with open(path) as file:
                tag = file.read().strip()  # Empty if DeepSpeed was killed while it wrote.
            folder = os.path.join(self._root, tag)
            if tag and os.path.isdir(folder) and None in _steps_in(folder):
                return
        for step in reversed(self.checkpointer.steps()):
            with _inspected(self.checkpointer, step) as details:
                trees = _trees(details)
            if not trees[0].get("latest"):
                continue
            folder = os.path.join(self._root, trees[0]["tag"])
            os.makedirs(folder, exist_ok=True)
            for name in (name for tree in trees for name in tree["files"]):
                _write(os.path.join(folder, name), f"{_POINTER}{step}}}\n")
            _write(path, trees[0]["tag"])
            return
        if os.path.exists(path):
            os.unlink(path)  # The save that it names never became durable.

    def _name_for_all_ranks(self) -> None:
        """Makes the texts for which an engine looks that has more ranks than saved: see resized."""
        ranks = self._engine.seq_dp_world_size if self._engine.zero_optimization() else 1
        for folder, steps in self._tags():
            for name in os.listdir(folder) if None not in steps else ():
                lacking = {
                    one
                    for rank in range(ranks)
                    if not os.path.exists(one := os.path.join(folder, resized.of_rank(name, rank)))
                }
                for path in lacking:
                    _write(path, f"{_POINTER}{_pointed(os.path.join(folder, name))}}}\n")

    def _remove_stale(self) -> None:
        """Removes the folders of tags whose checkpoints are gone."""
        in_flight = [save.step for save in self._saving if not save.done()]  # Asked before what is durable.
        kept = {None, *in_flight, *(one.step for one in self.checkpointer.checkpoints())}
        for folder, steps in self._tags():
            if not steps & kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _tags(self) -> Iterator[tuple[str, set[int | None]]]:
        """The folders of tags, with the steps that their texts lead to."""
        for entry in os.scandir(self._root):
            if entry.is_dir() and not entry.name.startswith(("step-", ".")) and (steps := _steps_in(entry.path)):
                yield entry.path, steps


def export(root: str | os.PathLike[str], folder: str | os.PathLike[str], step: int | None = None) -> str:
    """Writes a checkpoint (None: the newest) as DeepSpeed's own torch files into `folder/<tag>`, and `folder/latest`.

    For one process. What reads DeepSpeed's files then reads these: zero_to_fp32.py, ds_to_universal.py, an engine
    without Cairn. Returns the tag's folder.
    """
    with Checkpointer(root, read_only=True, host_memory="256MiB") as reader:
        if step is None and (step := reader.latest()) is None:
            raise NotFound(f"{os.fspath(root)} holds no checkpoint")
        with _inspected(reader, step) as details:
            trees = _trees(details)
            tag = trees[0]["tag"]
            os.makedirs(os.path.join(folder, tag), exist_ok=True)
            for name in (name for tree in trees for name in tree["files"]):
                contents = _objects(_read(reader, details, trees, name, resume=False))
                torch.save(contents, os.path.join(folder, tag, name))
    _write(os.path.join(folder, "latest"), tag)
    return os.path.join(folder, tag)


def _refuse(engine: Any) -> None:
    if not isinstance(engine, DeepSpeedEngine):
        raise InvalidArgument(f"attach: expected the engine that deepspeed.initialize returns, found {type(engine)}")
    if isinstance(engine.checkpoint_engine, CheckpointEngine):
        raise FailedPrecondition("attach: this engine is attached already; close it first")
    reasons = {
        "pipeline modules": isinstance(engine, PipelineEngine),
        "mixture-of-experts layers": engine.has_moe_layers,
        "optimizer state that is offloaded to NVMe": engine.zero_nvme_offload_optimizer(),
        "use_node_local_storage": engine.use_node_local_storage(),
        "load_universal": engine.load_universal_checkpoint(),
    }
    for what, found in reasons.items():
        if found:
            raise Unsupported(
                f"cairn.deepspeed does not support {what}, which DeepSpeed saves or loads by files of its own: leave "
                "the engine as it is; cairn.deepspeed.export makes such files from Cairn's checkpoints"
            )


def _node(details: dict[str, Any], trees: list[Any], name: str) -> tuple[int, Any]:
    """Which rank saved a file, and what it has there."""
    rank = next((rank for rank, tree in enumerate(trees) if name in tree["files"]), None)
    if rank is None:
        raise NotFound(f"{details['path']} holds no {name}")
    return rank, trees[rank]["files"][name]


def _outline(details: dict[str, Any], trees: list[Any], name: str) -> Any:
    """The contents of a file, with a resized.Tensor in the place of each tensor."""
    saved = tree_tensors.StoredTensors(details["tensors"])

    def leaf(kind: str, _like: Any, one: str, _strict: bool) -> resized.Tensor:
        return resized.Tensor(one, saved[one].of_kind(kind))

    return _objects(Reader(leaf, scalar, None).node(_node(details, trees, name)[1], None, f"files/{name}", False))


def _read(
    checkpointer: Checkpointer,
    details: dict[str, Any],
    trees: list[Any],
    name: str,
    resume: bool,
    plan: resized.Plan | None = None,
) -> Any:
    """The contents of a file, from the shard of whichever rank saved it. A `plan` is read with it, and leaves None in the
    place of what it leaves out."""
    rank, node = _node(details, trees, name)
    view = replicas.rank_view(details, rank, details["world"], replicas.Rules())
    prefix = f"files/{name}"
    made: dict[tuple[str, str], Any] = {}  # By the name that holds the bytes: tied tensors are one tensor.
    found: dict[str, Any] = dict.fromkeys(plan.left_out if plan else ())
    views = [*plan.views] if plan else []
    for one, kind in kinds_in(node, prefix).items():
        if one in found:
            continue
        key = view.tied.get(one, one), kind
        if key not in made:
            made[key] = tree_tensors.empty(view.saved[one].of_kind(kind), kind.partition(" ")[0])
            views.append(tree_tensors.target_view(one, made[key]))
        found[one] = made[key]
    checkpointer._engine.reading.read_views(details, views, resume)

    def leaf(_kind: str, _like: Any, one: str, _strict: bool) -> Any:
        return found[one]

    return Reader(leaf, scalar, None).node(node, None, prefix, False)


def _trees(details: dict[str, Any]) -> list[Any]:
    """What each rank saved, by rank."""
    return [replicas.tree_of(replicas.tree_text(details, rank)) for rank in range(details["world"])]


@contextlib.contextmanager
def _inspected(checkpointer: Checkpointer, step: int) -> Iterator[dict[str, Any]]:
    """The details of a step's checkpoint, which stays in place until the end of the block."""
    details = checkpointer._engine.reading.inspect_all(step)
    try:
        yield details
    finally:
        details["hold"].release()


def _same(found: Any, expected: Any) -> bool:
    """Whether two contents of a file are the same, bit by bit."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor) or (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return False
        one, two = (tensor.detach().cpu().reshape(-1).view(torch.uint8) for tensor in (found, expected))
        return torch.equal(one, two)
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(_same(found[key], expected[key]) for key in expected)
        )
    if isinstance(expected, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _plain(value: Any) -> Any:
    """The same with DeepSpeed's own objects as dicts of their fields."""
    kind = type(value)
    if kind in _OBJECTS.values():
        return {_KIND: kind.__name__, _FIELDS: {key: _plain(child) for key, child in vars(value).items()}}
    if isinstance(value, Enum) and kind in _ENUMS.values():
        return {_KIND: kind.__name__, _FIELDS: value.value}
    return _mapped(value, _plain)


def _objects(value: Any) -> Any:
    """The reverse of `_plain`. Only the classes named there are made."""
    if isinstance(value, dict) and set(value) == {_KIND, _FIELDS}:
        if value[_KIND] in _ENUMS:
            return _ENUMS[value[_KIND]](value[_FIELDS])
        if value[_KIND] not in _OBJECTS:
            raise InvalidArgument(f"the checkpoint holds a {value[_KIND]}; expected one of {', '.join(_OBJECTS)}")
        made = object.__new__(_OBJECTS[value[_KIND]])
        vars(made).update(_objects(value[_FIELDS]))
        return made
    return _mapped(value, _objects)


def _mapped(value: Any, change: Any) -> Any:
    """Containers are made anew only if something in them changes."""
    if isinstance(value, dict):
        changed = {key: new for key, child in value.items() if (new := change(child)) is not child}
        if changed:
            value = copy.copy(value)
            value.update(changed)
    elif type(value) in (list, tuple):
        new = [change(child) for child in value]
        if any(one is not child for one, child in zip(new, value, strict=True)):
            return type(value)(new)
    return value


def _pointed(path: str) -> int | None:
    """The step that a small text leads to; None for any other file."""
    with open(path, "rb") as file:
        head = file.read(64)
    if not head.startswith(_POINTER.encode()):
        return None
    return int(json.loads(head)["cairn_step"])


def _steps_in(folder: str) -> set[int | None]:
    """The steps that a folder's texts lead to; None for other files, but not for what a crash left of a text."""
    entries = [entry for entry in os.scandir(folder) if not entry.name.endswith(_DRAFT)]
    return {_pointed(entry.path) if entry.is_file() else None for entry in entries}


def _write(path: str, text: str) -> None:
    """Never half a file: readers and a crash see the old one or the new one."""
    with open(path + _DRAFT, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + _DRAFT, path)
