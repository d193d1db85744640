"""Lightning's CheckpointIO over Cairn. See cairn.lightning."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from .._checkpointer import Checkpointer
from .._errors import InvalidArgument, unless_disk_hangs
from .._memory import cloned
from .._path_store import PathStore
from .._paths import local_path
from .._ranks.replicas import patterns_of
from .._save import Save
from .._tree.casts import allows_loss
from .._tree.frozen import FrozenNames
from .._tree.paths import join, part_of
from .._tree.tensors import Placement
from .package import pl
from .values import check_kept, device_of, to_device

_BUFFERS = 64 << 20  # Bytes of a model's buffers that a save clones, so that the next forward need not wait.
_CheckpointIO: Any = pl.plugins.CheckpointIO
# The parts of a sharded strategy's checkpoint: "state_dict", one for each optimizer, and the rest.
OPTIMIZER, REST = "optimizer_", "lightning"


class CheckpointIO(_CheckpointIO):
    """Trainer(plugins=[CheckpointIO(...)]): Lightning's saves, loads and removals, through one Checkpointer.

    Options are Checkpointer's (host_memory, max_in_flight, ...), except those that choose what is kept: ModelCheckpoint
    does that. With cairn.lightning.Callback saves go on while training does; without one each is durable when its call
    returns. A failure in the background is raised by the next save and at the end of the fit.

    `frozen` as in Checkpointer.save: what does not change is written once, and linked. True means the parameters of the
    fit's module that have requires_grad=False, patterns take names such as "state_dict/backbone.*". It has an effect
    only with cairn.lightning.Callback.

    A module's tensor of another dtype than the checkpoint's is converted if it holds every value of that, which is
    logged. Else the load is refused, unless `cast` is "allow".
    """

    def __init__(self, *, frozen: bool | str | Iterable[str] = (), cast: str | None = None, **options: Any) -> None:
        self._frozen = frozen if isinstance(frozen, bool) else patterns_of("frozen", frozen)
        self._frozen_names = FrozenNames()
        self._store = PathStore(**options)
        self.cast = cast
        allows_loss(cast)
        self.read_from = ""  # What was read last.
        self._module: Any = None  # Set while a Callback fences.
        self._warned = False  # Or no warning is needed.
        self.optimizers_on: Any = None  # A fit's device.
        self.fences_forward = False  # The newest save's buffers were too large to clone.

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raises InvalidArgument, with the key, for a value that cannot be kept without pickle, before a byte is
        written."""
        if storage_options is not None:
            raise TypeError("storage_options: expected None, because Cairn saves to local filesystems")
        unless_disk_hangs(self._store.check)
        if self._module is not None:
            save = self._start(self._with_cloned_buffers(checkpoint), path)
            if os.path.basename(path).startswith("hpc_ckpt_"):
                save.exception()  # Lightning hands the job back to SLURM next.
                self._store.check()
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                "without cairn.lightning.Callback among the Trainer's callbacks, or outside a fit, each save waits "
                "until it is durable",
                stacklevel=2,
            )
        try:
            self._start(checkpoint, path).exception()
        finally:
            self._store.close()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Tensors are on the CPU, those of optimizers' states in a fit on its device; or all on map_location (a device,
        its name, or a dict with the key "cpu"). Those of a sharded strategy are whole. Runs no code from the checkpoint, whatever weights_only is."""
        folder = local_path(path)
        if os.path.isfile(folder):
            raise InvalidArgument(
                f"{folder}: expected a Cairn checkpoint, which is a folder, found a file. If Lightning wrote it, convert "
                "it: cairn.lightning.CheckpointIO().save_checkpoint(torch.load(path, weights_only=False), new_path), "
                "which runs what code it holds; Cairn unpickles nothing"
            )
        device = device_of(map_location)
        into = device if device and device.type in ("cpu", "cuda") else Placement(self._place)
        with self._store.reader(path) as reader:
            sharded = _is_sharded(reader, folder)
            loaded = _whole(reader, folder) if sharded else reader.load(folder=folder, map_location=into)
        checkpoint: dict[str, Any] = loaded if device is None else to_device(loaded, device)
        self.read_from = folder
        return checkpoint

    def _place(self, name: str) -> Any:
        """The state of optimizers goes where a fit will move it, and not into the CPU's memory first; the numbers of
        steps stay where torch wants them."""
        state = name.startswith("optimizer_states/") and "/state/" in name and not name.endswith("/step")
        return self.optimizers_on if state else None

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes it once the earlier saves are durable; at once if none is in flight."""
        removal = self._store.remove(path)
        if self._module is None:
            removal.exception()
            self._store.close()

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether it will exist when every save and removal in flight has succeeded."""
        return self._store.exists(path)

    def teardown(self) -> None:
        """Waits for saves in flight and frees the pool. Raises the first failure, unless an exception is being
        handled."""
        self._module = self.optimizers_on = None
        self._store.close(sys.exc_info()[1])

    def fence(self) -> None:
        """Orders later work of the current streams after the capture of every save so far; see Checkpointer.fence."""
        self._store.fence()

    def attach(self, module: Any) -> None:
        """Saves may go on while this module trains: the caller fences."""
        self._module, self._warned = module, True

    # For sharded strategies

    def save_sharded(self, checkpoint: dict[str, Any], path: str, group: Any, buffers: set[str]) -> None:
        """Starts a save of every rank's part of the state; of the rest, rank 0's. Every rank calls it. `buffers` are names of
        the module's, of which one rank's are kept."""
        if group is None:
            self._store.check()
        durable = self._module is None or os.path.basename(path).startswith("hpc_ckpt_")
        if self._module is not None:
            checkpoint = self._with_cloned_buffers(checkpoint)

        def gather() -> tuple[dict[str, Any], dict[str, Any]]:
            rest = {key: value for key, value in checkpoint.items() if key not in ("state_dict", "optimizer_states")}
            with _hints():
                check_kept(rest, "")
            optimizers = enumerate(checkpoint.get("optimizer_states", []))
            state = {f"{OPTIMIZER}{index}": state for index, state in optimizers}
            return {"state_dict": checkpoint["state_dict"], **state}, {REST: rest}

        def start(checkpointer: Checkpointer, step: int, tree: Any) -> Save:
            frozen = self._frozen_items()
            save: Save = _direct().start_save_of(
                checkpointer, step, tree, is_buffer=buffers.__contains__, frozen=frozen
            )
            return save

        save = self._store.save(gather, path, start, group)
        if durable:
            save.exception()
            if self._module is None:
                self._store.close()
            else:
                self._store.check()

    def await_path(self, path: str) -> None:
        """Waits for a save to this path that is in flight."""
        self._store.await_path(path)

    @contextlib.contextmanager
    def sharded_reader(self, path: str, group: Any) -> Iterator[ShardedReader]:
        """Every rank of the group calls it. Raises InvalidArgument if no sharded strategy saved this checkpoint."""
        folder = local_path(path)
        with self._store.reader(path, group) as reader:
            if not _is_sharded(reader, folder):
                raise InvalidArgument(
                    f"{path}: expected a checkpoint of cairn.lightning's sharded strategies, found one of a single "
                    "device or DDP: load its weights with cairn.lightning.load_from_checkpoint before sharding"
                )
            yield ShardedReader(reader, folder, self.cast)

    # Internal

    def _start(self, checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> Future[None]:
        with _hints():
            check_kept(checkpoint, "")
            return self._store.save(checkpoint, path, self._save)

    def _save(self, checkpointer: Checkpointer, step: int, checkpoint: dict[str, Any]) -> Save:
        if self._frozen is not True:
            return checkpointer.save(step, checkpoint, frozen=self._frozen)
        module = () if self._module is None else self._module.named_parameters(remove_duplicate=False)
        names = (join("state_dict", part_of(name, "state_dict")) for name, one in module if not one.requires_grad)
        self._frozen_names = self._frozen_names.now(frozenset(names))
        return checkpointer.save(step, checkpoint, frozen=self._frozen_names)

    def _frozen_items(self) -> Any:
        from .._dcp.frozen import Frozen

        if self._frozen is True:
            frozen = Frozen(self._module is not None)
            frozen.look_at({"state_dict": self._module})
            return frozen
        return Frozen([one.replace("/", ".", 1) for one in self._frozen or ()])  # As items are named.

    def _with_cloned_buffers(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Forward changes buffers (batch norm's averages), and only the optimizer's step after it is fenced."""
        addresses = {buffer.data_ptr() for buffer in self._module.buffers()}
        # Besides "state_dict" there is "current_model_state" with Lightning's WeightAveraging, and what a hook adds.
        buffers = {
            part: {
                name: tensor
                for name, tensor in state.items()
                if type(tensor) in (torch.Tensor, torch.nn.Parameter)
                and tensor.data_ptr() in addresses  # Not a sharded one.
            }
            for part, state in checkpoint.items()
            if isinstance(state, dict)
        }
        size = sum(tensor.nbytes for found in buffers.values() for tensor in found.values())
        self.fences_forward = size > _BUFFERS
        if self.fences_forward or size == 0:
            return checkpoint
        checkpoint = copy.copy(checkpoint)
        for part, found in buffers.items():
            if found:
                checkpoint[part] = copy.copy(checkpoint[part])
                checkpoint[part].update({name: cloned(tensor) for name, tensor in found.items()})
        return checkpoint


class ShardedReader:
    """One checkpoint of a sharded strategy."""

    def __init__(self, checkpointer: Checkpointer, folder: str, cast: str | None) -> None:
        self._checkpointer, self._folder, self._cast = checkpointer, folder, cast
        items = _direct().items_in(checkpointer, folder, None, ())
        self.parts = {str(path[0]) for path in items.paths.values()}
        # Without its tensors.
        self.rest: dict[str, Any] = _direct().plain_value(items, REST) if REST in self.parts else {}

    def load_into(self, state: dict[str, Any], strict: bool) -> None:
        _direct().load_into(self._checkpointer, state, folder=self._folder, strict=strict, cast=self._cast, parts=True)


def _direct() -> Any:
    """Torch's DCP is imported only where it is used: it must be newer than what else this needs."""
    importlib.import_module("cairn.dcp")  # Checks torch's version.
    return importlib.import_module("cairn._dcp.direct")


def _is_sharded(reader: Checkpointer, folder: str) -> bool:
    reading = reader._engine.reading
    chosen = reading.choose(None, folder)
    with chosen["hold"]:
        return "dcp" in reading.inspect_part(chosen, 0, [])["values"][0]


def _whole(reader: Checkpointer, folder: str) -> dict[str, Any]:
    """A sharded strategy's checkpoint as Lightning's of one device: parameters have names where that has numbers, which
    torch's optimizers take as well."""
    loaded = _direct().load_all(reader, folder)
    if REST not in loaded:
        raise InvalidArgument(f"{folder}: expected a checkpoint of cairn.lightning, found one that cairn.dcp wrote")
    optimizers = [loaded[f"{OPTIMIZER}{i}"] for i in range(len(loaded)) if f"{OPTIMIZER}{i}" in loaded]
    weights = {"state_dict": loaded["state_dict"]}
    return {**loaded[REST], **weights, **({"optimizer_states": optimizers} if optimizers else {})}


@contextlib.contextmanager
def _hints() -> Iterator[None]:
    """Adds to a refused hyper-parameter how to leave it out."""
    try:
        yield
    except InvalidArgument as error:
        key = str(error).partition(":")[0].split("/")
        if key[0] in ("hyper_parameters", "datamodule_hyper_parameters") and len(key) > 1:
            raise InvalidArgument(f'{error}; or self.save_hyperparameters(ignore=["{key[1]}"])') from error
        raise
