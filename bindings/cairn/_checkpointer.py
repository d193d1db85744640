"""The plain API: one object that saves trees of tensors while training goes on, and restores them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _protect, _tree
from ._arguments import callback, flag, one_of, optional_step, seconds, several, step_number, text, timeout_of
from ._best import MODES, described, description, ranked
from ._engine import Engine
from ._errors import Error, FailedPrecondition, NotFound
from ._mirrors import Mirror
from ._paths import checkpoint_path, local_path
from ._ranks import replicas as replication
from ._save import Checkpoint, Save
from ._stop import SIGNALS, Stop
from ._tree.casts import allows_loss
from ._tree.frozen import FrozenNames
from ._tree.tensors import TensorCollector, placement_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._core import CopyPause


class Checkpointer:
    """Writes checkpoints of trees under one root, several at once, while training goes on; restores them.

    A tree is a dict, list or other container of tensors (torch or numpy), plain values, and objects with state_dict and
    load_state_dict; `cairn._tree` has the full list. Only one Checkpointer writes to a root. All methods may be called
    from any thread. As a context manager it drains at the end; so does Python when it exits, within `close_timeout`.

    Sizes are bytes or text ("4GiB", "4GB"), times seconds:
      root           the folder of the checkpoints, on a mounted filesystem; it is made if it is missing
      memory         a folder on tmpfs, such as "/dev/shm", where each save is kept first: then no save waits for the disk,
                     and the death of the process, unlike that of the machine, loses none. The disk gets the newest
                     whenever it is free; `restore` takes the newest of both. It takes max_in_flight + 2 times the state
                     of memory, allocated by the first save, and pinned for the GPUs that copy into it; where that does
                     not fit, a warning says what is missing, and saves go to the disk alone. For ranks of one node
      disk_every     with `memory`: the disk gets a save only if its step is at least so many above that of the newest
                     that it has; 0: whenever it is free. `wait`, `drain` and `close` have it get the newest at once
      host_memory    hard cap of the pinned pool; the state itself may be larger. "auto": the state's size, at most a
                     quarter of the memory that is available, divided by the ranks of this node: what the launcher's
                     variables say (torchrun, MPI, SLURM), or else the group's ranks on this machine. What is missing for
                     the state is pinned behind the first save, or the restore before it; with a size all is pinned when
                     it opens
      max_in_flight  saves between queued and durable at once
      keep_last      committed checkpoints to keep; 0 keeps all
      keep_every     also keep each step divisible by it; 0: none
      keep_best      how many checkpoints to keep beside those: the ones with the best value of `best_metric`
      best_metric    one of the `metrics` given to `save`
      best_mode      "min" or "max". Of equal ones the newest counts
      when_full      what `save` does when max_in_flight saves are in flight: "wait" (up to full_timeout), "skip" the
                     new one, or "replace" the youngest that is not captured
      full_timeout   how long `save` waits then before it raises DeadlineExceeded
      stall_timeout  when the disk has not answered an operation for so long, saves that wait for it fail, further ones
                     fail at once until it answers, and fences return: training goes on. 0: never
      close_timeout  how long `close` may take, all of it
      open_timeout   how long opening waits for another writer to release the root, before it fails and names that writer
      take_over      after open_timeout take the root from that writer, whose saves fail from then on
      exist_ok       whether this process may have the root open already: that Checkpointer is closed first, once its
                     saves have ended. For a notebook's cell that is run again
      read_only      only read: needs no lock, also beside a writer, and makes nothing in the root
      chunk          size of one copy and one write, a multiple of 1 MiB. 0: 8 MiB, or 4 MiB in a small pool
      queue_depth    how many writes, or reads, the disk has at once. 0: 8, divided by the ranks of this node, at least 2
      worker_threads threads that compute checksums and copy CPU tensors. 0: one for each core, divided by the ranks of
                     this node, at most 4
      copy_streams   CUDA streams for copies, on each device
      staging        device memory, on each device, to which chunks are copied first: a fence then waits only for what
                     neither it nor the pool holds. 0, or at least one chunk
      cuda_devices   the devices that saves will use, set up when it opens; by default torch's current one, if CUDA is in
                     use by then. Others are set up by the first save of their tensors
      checksums      CRC32C over every MiB; without it a flipped bit is not found
      gpu_checksums  have GPUs compute them for chunks that are contiguous tensors of one GPU, or are staged. They then
                     cost almost no host core, and also cover the way from the GPU's memory: the host compares one block in
                     32, and a save whose copy differs raises Corrupt. Proven on an H200 alone
      nonfinite      "mark" checkpoints with floating point tensors that hold NaNs or infinities (`Checkpoint.nonfinite`),
                     "off", or "auto": "mark" where it costs little, which is where the host computes the checksums and
                     its CPU has AVX2. Nothing fails. Retention keeps the newest checkpoint of the best kind (finite;
                     with infinities; with NaNs) besides keep_last, if it is older than these; `keep_best` and `best`
                     go by the checkpoints of that kind only
      recycle        overwrite the blocks of retired checkpoints that nobody else has open: a quarter faster than new
                     blocks. The disk then holds at most keep_last + max_in_flight + 1 checkpoints, plus those that
                     keep_every and pins keep, and one that nonfinite keeps
      io_queue       "auto", "io_uring" or "threads"
      file_mode      permissions of new files, before the umask. 0o640 and 0o750 let another user of the group read
      directory_mode permissions of new folders
      trace_events   how many events to keep for `write_trace`; 0: none
      stop_after_failures  after how many failed saves in a row `check` raises, with those that `save` refused. 0: it raises
                     the newest failure, whatever came after it
      on_failure     a function that is called with (step, error) when a save has failed, on a thread of its own; not for
                     those that `save` refused, or that were cancelled, skipped or replaced. What it is told counts as heard
      metrics_file   a file, "NAME.prom", for node_exporter's textfile collector, in a folder that exists: replaced at
                     each save's end and every 15 s, removed by `close`. In a group each rank has one, NAME-rank0.prom
      metrics_port   serve the same numbers to Prometheus at this port, with prometheus_client. In a group a rank adds its
                     number on its node (LOCAL_RANK), or else its rank. 0: any free port. None: no port
      mirrors        cairn.Mirror(target, ...) for each other disk that gets copies: `cairn mirror`, as a process of its own,
                     which is started again if it dies. Training never waits for it; what goes wrong is logged. In a group
                     rank 0 starts them
      mirror_timeout how long `close` waits, within its own time, until the mirrors have copied what is due; one that takes
                     longer is named in the log, and goes on behind
      restore_from   a mirror of the root, as for cairn.Mirror: if the root has no checkpoint, opening it first brings the
                     newest one from there. If there is none either, that is logged, and `restore` raises NotFound. If it
                     cannot be read, opening raises that; DeadlineExceeded once nothing has moved for group_timeout. In a
                     group rank 0 does it, and the others wait
      unfenced_writes  what becomes of a save whose tensors were overwritten before `fence`, `protect` or
                     Save.captured() had waited for it: "fail" it, "warn" (log it: the checkpoint may mix two steps), or
                     "ignore"
      group          the ranks that write one checkpoint together, one shard each: a torch.distributed ProcessGroup, or
                     a tuple (Store, rank, world). Every rank opens the root, saves the same steps in the same order,
                     and calls `restore` together with the others
      group_timeout  how long a rank waits for the others
      replicated     names of tensors and values that are equal on every rank (patterns with * and ?): written once, and
                     readable at any number of ranks. The contents of DistributedDataParallel modules are replicated
                     too. Everything else belongs to its rank. Every save compares names, dtypes, shapes and values. A
                     difference fails the save
      per_rank       names (patterns too) of which each rank keeps its own, though they are replicated, or though ranks
                     have the same names in a state of cairn.dcp
      compare_replicas  when saves compare the contents of tensors, too, of which one rank's are kept: at the "first" save
                     (and after names or sizes have changed), "always" or "never". It reads all of them inside the call
      interval       seconds between saves, for `should_save`
      slowdown       or let `should_save` choose the interval: how much saves may slow training down (0.01 is 1 %)
      mtbf           the mean time between failures of the job, with slowdown
      restart_time   the time from a failure until training continues, with slowdown
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        memory: str | os.PathLike[str] | None = None,
        disk_every: int = 0,
        host_memory: int | str = "auto",
        max_in_flight: int = 2,
        keep_last: int = 3,
        keep_every: int = 0,
        keep_best: int = 0,
        best_metric: str = "",
        best_mode: str = "min",
        when_full: str = "wait",
        full_timeout: float = 3600.0,
        stall_timeout: float = 120.0,
        close_timeout: float = 600.0,
        open_timeout: float = 10.0,
        take_over: bool = False,
        exist_ok: bool = False,
        read_only: bool = False,
        chunk: int | str = 0,
        queue_depth: int = 0,
        worker_threads: int = 0,
        copy_streams: int = 2,
        staging: int | str = 0,
        cuda_devices: Sequence[int] = (),
        checksums: bool = True,
        gpu_checksums: bool = False,
        nonfinite: str = "auto",
        recycle: bool = True,
        io_queue: str = "auto",
        file_mode: int = 0o644,
        directory_mode: int = 0o755,
        trace_events: int = 0,
        stop_after_failures: int = 0,
        on_failure: Callable[[int, Error], object] | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        metrics_port: int | None = None,
        mirrors: Sequence[Mirror] = (),
        mirror_timeout: float = 60.0,
        restore_from: str | os.PathLike[str] | None = None,
        unfenced_writes: str = "fail",
        group: Any = None,
        group_timeout: float = 600.0,
        replicated: str | Iterable[str] = (),
        per_rank: str | Iterable[str] = (),
        compare_replicas: str = "first",
        interval: float | None = None,
        slowdown: float | None = None,
        mtbf: float | None = None,
        restart_time: float = 0.0,
    ) -> None:
        options = {name: value for name, value in locals().items() if name not in ("self", "root")}
        self._engine = Engine(local_path(root, "root"), options)
        self._guard = _protect.Guard(self._engine)

    @property
    def root(self) -> str:
        """The absolute path of the folder of the checkpoints."""
        return self._engine.root

    @property
    def rank(self) -> int:
        """This process's rank in the group; 0 without one."""
        return self._engine.ranks.rank

    @property
    def world(self) -> int:
        """How many ranks write a checkpoint together."""
        return self._engine.ranks.world

    @property
    def metrics_port(self) -> int | None:
        """The port at which this rank serves its metrics; None without `metrics_port`."""
        server = self._engine.metrics
        return None if server is None else server.port

    # Saving

    def save(
        self,
        step: int,
        tree: Any,
        *,
        replace: bool = False,
        pin: bool = False,
        streams: Iterable[Any] = (),
        replicated: str | Iterable[str] | replication.Rules = (),
        frozen: bool | str | Iterable[str] | FrozenNames = (),
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Starts a save and returns before any byte of tensor data has moved.

        The checkpoint sees all work on its tensors that was given to each device's current stream (and to `streams`,
        torch.cuda.Stream objects) before the call: on tensors of a GPU, and on pinned or managed CPU tensors, as by
        `copy_(..., non_blocking=True)`. For a state without tensors of a GPU that is torch's current device. Work in
        other streams is not seen, nor is that on pinned CPU tensors if this Checkpointer uses no GPU yet. Plain values,
        and other CPU tensors up to 64 KiB each (4 MiB in all), are copied in the call. All other tensors must not be
        overwritten before the save is captured: see `fence` and `protect`. In a group
        every rank saves; `replicated` adds to the Checkpointer's. With `replace` the save waits, in the background, for
        who reads the step's old checkpoint, at most half of group_timeout.

        With `pin` the checkpoint is pinned from its commit on: retention, which may remove a step before `pin(step)`
        comes, never sees it without. A checkpoint that replaces a pinned one is pinned in any case. In a group rank 0's
        counts.

        `frozen` says what training does not change: True for the parameters of the tree's modules that have
        requires_grad=False, or patterns of names as `replicated` has them. The first save writes these tensors into a
        file of their own. The checkpoints that follow have a hard link to it: every folder is whole, and a save costs
        only what changes. A tensor is written again if torch has counted a write into it, if an optimizer has stepped
        it, or if it has other memory. Writes that torch does not count (through `.data`, by numpy, by a kernel of your
        own) are not seen until the file is written anew, after 49 links, and without checksums never. Where torch counts
        nothing (inference tensors, views of a larger memory, numpy arrays) each save copies what is frozen, and compares
        checksums. Less than 1 MiB is written with the rest. Versions of cairn from before this refuse such checkpoints.

        `metadata` (plain values) and `metrics` (numbers) are kept beside the tree: `checkpoints` has them, and
        `keep_best` chooses by a metric. In a group rank 0's count.

        Raises InvalidArgument, with the path, for a value that cannot be kept; AlreadyExists for a step that is
        committed (unless `replace`); FailedPrecondition for a step below the newest without a restore; DeadlineExceeded
        if max_in_flight saves were in flight for `full_timeout`. Later failures are on the Save, and the next `check`
        raises them.
        """
        replicas = replication.NOTHING
        after: list[Any] = []

        def fill(tensors: TensorCollector) -> list[tuple[str, str]]:
            nonlocal replicas
            after.extend(several("streams", streams))
            text = _tree.flatten(tree, tensors)
            self._engine.freeze(tensors, frozen, tree, partial(replication.unmatched, text=text))
            values, replicas = self._engine.replica_arguments(step, tree, text, tensors, replicated, after)
            about = described(metadata, metrics) if self._engine.ranks.rank == 0 else []
            return [("tree", text), *values, *about]

        save = self._engine.start(
            step, fill, lambda: replicas, streams=after, replace=replace, pin=pin, metrics=metrics
        )
        self._engine.comparison.saved(save)
        return save

    def should_save(self, step: int) -> bool:
        """Whether to save `step`, which training has just finished. Call it once after each step, before `save`, on
        every rank of a group: all get the same answer.

        With `interval` it is True once that many seconds have passed since the last save began. With `slowdown` and
        `mtbf` the first calls return False while training's iterations are timed, then one save is measured. From then
        on the answer follows the interval with the best goodput that `slowdown` and the disk allow, updated by the cost
        of each save; `stats` has the interval ("save_interval") and its reason ("save_interval_reason").

        In a group rank 0 decides, and the others hear it about twice a second, not at each step; a save comes up to a
        second later than it would alone. Raises FailedPrecondition without one of these options, and DeadlineExceeded if
        rank 0 does not call it within `group_timeout`.
        """
        if self._engine.schedule is None:
            raise FailedPrecondition(
                f"should_save({step}): the Checkpointer was opened without interval=..., or slowdown=... and mtbf=..."
            )
        return self._engine.schedule.should_save(step_number(step))

    def fence(self, stream: Any = None, timeout: float | None = None) -> None:
        """Orders later work after the capture of every save so far: call it before tensors are overwritten.

        Without `stream` that is the work of the current stream of each device that these saves read from; with one
        (torch.cuda.Stream) that stream's alone. The stream waits if every copy is enqueued already, and the host runs
        ahead. Otherwise, and while a save reads CPU tensors, the host waits. A failed save delays nobody. Within
        torch.compile it is the op torch.ops.cairn.fence: put it before the code that overwrites tensors. Raises
        FailedPrecondition within the capture of a CUDA graph, and within code that torch.compile makes one of.
        """
        if self._guard.compiled():
            return
        _protect.refuse_capture()
        self._engine.fence(timeout_of(timeout), stream)

    def pause_copies(self, at_most: float = 1.0) -> CopyPause:
        """Holds copies to the host back, until the result's end() or the end of a `with`: for training that sends over
        the same link, such as a pipeline's stages. Pauses may overlap.

        A chunk on its way goes on. From the first pause on a save has one at a time. Copies begin again when the last
        pause has ended, or `at_most` seconds after it began, or when a fence waits for them. `close` ends all pauses.
        """
        return self._engine.core.pause_copies(seconds("at_most", at_most))

    def protect(self, *targets: Any) -> None:
        """Fences before each step of these optimizers, so that no parameter changes under a save.

        Accelerate's and Lightning's wrappers are unwrapped. For a module it protects the optimizers that step within
        backward, and loading a state dict into the module waits too. Raises InvalidArgument, with the type, for targets
        that call no hooks. Under torch.compile the fence is the op torch.ops.cairn.fence. Raises FailedPrecondition
        for an optimizer whose step was captured in a CUDA graph, and so does the capture of a protected one.
        """
        for target in targets:
            self._guard.add(target)

    # Reading

    def restore(
        self,
        tree: Any,
        step: int | None = None,
        *,
        folder: str | os.PathLike[str] = "",
        fall_back: bool = False,
        strict: bool = True,
        cast: str | None = None,
        map_location: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Reads the newest checkpoint (or `step`, or a `folder` that was copied elsewhere) into the tree's tensors.

        Names, shapes and dtypes are checked before the first byte is written, and every byte is verified. Tensors are
        filled in place; tensors that an object with load_state_dict lacks are created. Returns the tree with the
        checkpoint's plain values. Waits first, up to close_timeout, for the saves of this process that it would read:
        those of `step`, or all that were started under this root. DeadlineExceeded names one that takes longer. If one
        fails, what was committed before is read; its error stays with its Save. Raises NotFound only if there is no such
        checkpoint (retention does not remove the newest while it is read); Corrupt if it is damaged or cannot be read
        from the disk; InvalidArgument, with both lists, if tree and checkpoint differ. After Corrupt the tensors'
        contents are unspecified.

        `fall_back` permits an older checkpoint if the one that is read turns out to be Corrupt, and logs which one was
        passed over and why. Only what the tree needs is read and verified; `verify` reads everything. InvalidArgument, with
        strict=False, if the older one lacks a tensor into which a part of the damaged one was read.

        A torch optimizer must have the saved class, groups, parameters and shapes, and no state that the checkpoint lacks.
        Its state follows the parameters' names where both sides have them: param_names, or those of their module, if it is
        in both trees. Else it follows the order of the parameters. It keeps its saved dtypes.

        With `strict=False` names may be on one side only: what the checkpoint lacks stays as it is in the tree, what the
        tree lacks is left out, and a warning lists both. That includes an optimizer's parameters, if both sides have
        their names. But InvalidArgument names an object with tensors (a module, an optimizer) of which the checkpoint has
        nothing: leave it out of the tree. Shapes and dtypes must still agree. A tensor of another dtype is converted, and logged, if it holds
        every value of the checkpoint's (float32 for bfloat16); with `cast="allow"` any is, also where that loses
        something. The names of a compiled
        module (`_orig_mod.`) match the plain module's, and the other way round. Tensors that are created are on the CPU,
        and a torch optimizer's on the device of their parameter, into which they are read; or on the device
        `map_location` ("cpu", "cuda:0"). Those of the tree stay where they are.

        In a group every rank calls it, with the same step and fall_back (else InvalidArgument). Rank 0 chooses, each
        rank reads its own state and what is replicated, and all succeed or all raise. If a checkpoint is Corrupt on one
        rank, all ranks pass over it. Raises FailedPrecondition if a rank cannot find what rank 0 has chosen, after
        group_timeout. If another number of ranks saved the checkpoint, only what is replicated can be read: leave the
        other keys out of the tree.
        """
        self._engine.log_events()
        with self._engine.reading.counted():
            self._engine.core.fence(-1, 0, None)  # The tensors may still be read by a save.
            self._engine.release_captured()
            try:
                step, progress = optional_step(step), callback("progress", progress)
                folder = checkpoint_path(folder, "folder") if folder else ""
                fall_back, strict = flag("fall_back", fall_back), flag("strict", strict)
                loss, place = allows_loss(cast), placement_of(map_location)
            except Error as error:
                self._engine.reading.refuse(error)
                raise
            return self._engine.reading.restore(
                tree, step, folder, fall_back, progress, strict=strict, cast=loss, place=place
            )

    def load(
        self,
        step: int | None = None,
        *,
        names: str | Sequence[str] | None = None,
        lazy: bool = False,
        folder: str | os.PathLike[str] = "",
        map_location: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Builds a tree from a checkpoint: objects come back as their state dicts. To continue training use `restore`.
        Waits for saves in flight as that does.

        torch tensors are on the CPU, or on the device `map_location`, into which they are read.

        Tied tensors (the same memory, dtype and shape) are one tensor again. With `names` (tensor names, or patterns
        with * and ?) the result is a flat dict of those tensors; a name or pattern without a match raises NotFound. In
        a group it is this rank's tree, and each rank may load on its own. With `lazy` nothing is read yet: each tensor
        is a LazyTensor, whose load() reads it.
        """
        with self._engine.reading.counted():
            return self._engine.reading.load(
                optional_step(step),
                names,
                lazy,
                checkpoint_path(folder, "folder") if folder else "",
                callback("progress", progress),
                placement_of(map_location),
            )

    # Committed checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first; those with damaged manifests come last.

        Only manifests are read, and what mirrors have said: `verify`, `restore` and `load` find a missing or damaged shard.
        """
        return [Checkpoint(**fields, _describe=self._describe) for fields in self._engine.core.checkpoints()]

    def best(self, metric: str, mode: str = "min") -> int | None:
        """Step of the checkpoint with the lowest (or with "max" the highest) value of a metric; None if no checkpoint
        has it. Of equal ones the newest. Of those that have it, only the best kind counts: finite ones, if there are any;
        else those with infinities; else those with NaNs (see `nonfinite`)."""
        found = ranked(self._engine.core, text("metric", metric), one_of("mode", mode, MODES))
        return int(found[0]["step"]) if found else None

    def _describe(self, path: str, what: str) -> dict[str, Any]:
        return description(self._engine.core, path, what)

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints with good manifests, oldest first."""
        return [one.step for one in self.checkpoints() if one.damage is None]

    def latest(self, *, fall_back: bool = False) -> int | None:
        """Step of the newest committed checkpoint; None if there is none. `restore` waits for newer ones in flight.

        Only manifests are read. Raises Corrupt, as `restore` does, if the newest checkpoint's manifest is damaged. With
        `fall_back` it is the newest checkpoint in which every byte is good, and every byte is read to find out.
        """
        if fall_back:
            return self._engine.reading.newest_undamaged()
        listed = self.checkpoints()
        if not listed:
            return None
        # A damaged checkpoint may be the newest or not; `choose` raises the error that says what is wrong with it.
        if listed[-1].damage is None:
            return listed[-1].step
        try:
            details = self._engine.core.choose(None, "", False)
        except NotFound:
            return None
        details["hold"].release()
        return int(details["step"])

    def verify(self, step: int | None = None, *, progress: bool | Callable[[int, int], None] = False) -> None:
        """Reads every byte of a checkpoint and checks it; raises Corrupt. Waits for saves in flight as `load` does.
        `progress=True` shows a bar (tqdm)."""
        step = optional_step(step)
        self._engine.reading.wait_for_saves(step)
        if progress is True:
            from tqdm import tqdm

            with tqdm(unit="B", unit_scale=True, desc="verify") as bar:

                def show(done: int, total: int) -> None:
                    bar.total = total
                    bar.update(done - bar.n)

                self._engine.core.verify(step, "", show)
            return
        self._engine.core.verify(step, "", callback("progress", progress or None))

    def pin(self, step: int) -> None:
        """Keeps a checkpoint from retention until `unpin`. Durable on return. Retention may have removed it by then:
        `save(..., pin=True)` pins in the commit."""
        self._engine.core.pin(step_number(step), True)

    def unpin(self, step: int) -> None:
        """Ends the pin. A checkpoint that `keep_best` keeps stays pinned. Durable on return."""
        self._engine.core.pin(step_number(step), False)
        self._engine.settle_best()

    def remove(self, step: int) -> None:
        """Removes a checkpoint, even a pinned one. Raises FailedPrecondition while somebody reads it."""
        self._engine.core.remove(step_number(step))

    def publish(self, step: int, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Moves a committed checkpoint to a path outside the root, on the same filesystem; durable on return.

        A checkpoint (or link) at that path is removed once nobody reads it. If somebody still does after `timeout`
        seconds, raises DeadlineExceeded. Raises AlreadyExists if the path holds something else. After a crash the path
        holds the old checkpoint or the new one.
        """
        self._engine.core.publish(step_number(step), os.fsencode(local_path(path)), timeout_of(timeout))

    def remove_published(self, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Removes the checkpoint (or link) at that path. Raises NotFound if there is nothing, InvalidArgument if it is
        something else; waits for readers as `publish` does."""
        self._engine.core.remove_published(os.fsencode(local_path(path)), timeout_of(timeout))

    @property
    def stats(self) -> dict[str, Any]:
        """Of this Checkpointer as a whole, since it opened; sizes are bytes, ages seconds. In a group it is this rank's.

        io_queue              "io_uring" or "threads"; io_queue_reason says why that one
        ranks_of_node         how many ranks share this node, as far as is known; an event of the opening says from where
        pool_bytes            the pinned pool; pool_limit_bytes is what it may grow to
        pool_hugepage_bytes   how much of the pool huge pages back; 0 until it was touched
        pool_peak_bytes       the most that was in use at once
        chunk_bytes           one chunk of the pool: what is copied and written at once
        saves_started         calls of `save`; each is durable, failed or in flight
        saves_durable, saves_failed, saves_in_flight
                              how many of them are; those refused, cancelled, skipped or replaced count as failed
        saves_kept            how many were kept in `memory` first; those that the disk did not get are neither durable nor
                              failed. memory is the folder there; "" without, and once it is not used any more
        since_durable         the age of the newest durable save: how long ago it became durable. None before the first
        bytes_written         what ended saves gave to the filesystem, with headers and padding
        shards_recycled       files of retired checkpoints that were overwritten instead of new ones made;
                              not_recycled_reason says why the last one that was rejected could not be
        failures_in_a_row     saves that have failed, or were refused, since the last durable one; without those cancelled,
                              and those of a step that is saved already
        newest_step           on rank 0 the newest checkpoint that is known to be durable, also one that the root had at the
                              opening; newest_age is how long it has been so, by the system's clock. None: there is none
        disk_free_bytes       free on the root's filesystem when the last save began, or at the opening
        save_interval         iterations between saves, as `slowdown` and `mtbf` have chosen; 0 before that.
                              save_interval_reason says what limits it
        """
        return self._engine.core.stats()

    def metrics_text(self) -> str:
        """This rank's metrics as text in Prometheus' format (0.0.4), for a server of the program's own."""
        return self._engine.core.metrics_text()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last `trace_events` events as Chrome trace JSON (opens in Perfetto): copies of chunks, writes,
        fences, saves. Times are microseconds of time.monotonic()."""
        self._engine.core.write_trace(local_path(path))

    # Ending

    def stop_on(
        self,
        signals: Iterable[str | int] = SIGNALS,
        *,
        notice: Callable[[], Any] | None = None,
        every: float = 5.0,
        grace: float | None = None,
    ) -> None:
        """From now on these signals, or a notice, ask training to stop: see `stop_requested`. Ends with `close`.

        Call it once, on the main thread; in a group on every rank. A signal's earlier handler, if it is a Python
        function, is called as well, and is the handler again after `close`. The first SIGINT (Ctrl-C) asks to stop, a
        second one does what it would do without Cairn. Children that are forked inherit the handlers, but not that of
        SIGTERM; for the workers of a DataLoader see `shield_worker`. A SIGINT that is ignored stays ignored.

        `notice` is called on a thread of its own, again `every` so many seconds. It returns whether to stop (or, as
        text, why), and may block: a cloud's metadata server can be asked here. If it raises, that is logged once.

        `grace` is how many seconds after the first signal or notice the process may last. From then on no wait of
        Cairn's for saves, but with a timeout of the caller's, lasts longer than is left of it, also one under way:
        `save`, `fence` and so the steps of protected optimizers, `close` and the end of `with`. Then they raise DeadlineExceeded, and the newest durable checkpoint
        is the one to resume from. If `stop_requested` was not called within it, stderr says so, with that checkpoint's
        step. Choose it shorter than what the scheduler gives.

        Raises InvalidArgument for what is no signal, or a signal that no handler can catch; FailedPrecondition if it is
        called again or, with signals, on another thread.
        """
        engine = self._engine
        if engine.stop is not None:
            raise FailedPrecondition("stop_on: expected one call, found another: close the Checkpointer first")
        engine.stop = stop = Stop(signals, notice, every, grace, engine.ranks, engine.root, engine.core)
        weakref.finalize(engine, stop.end).atexit = False

    def stop_requested(self) -> bool:
        """Whether training is to stop after this step. Call it once after each step; in a group on every rank.

        True says to save once more and to end the loop:

            stopping = checkpointer.stop_requested()
            if stopping or step % 100 == 0:
                checkpointer.save(step, tree | {"step": step})
            if stopping:
                break

        In a group all ranks get True after the same step, even if only one of them has got the signal. They talk only
        then: once, the call waits for the others' threads (milliseconds). Raises FailedPrecondition before `stop_on`;
        DeadlineExceeded if a rank does not answer.
        """
        engine = self._engine
        if engine.stop is None:
            raise FailedPrecondition("stop_requested: expected a call of stop_on before")
        return engine.stop.requested(engine.within_grace(engine.group_timeout))

    @property
    def stop_reason(self) -> str | None:
        """Why training stops ("SIGTERM", "rank 3: SIGTERM", "notice"), once stop_requested has returned True."""
        return None if self._engine.stop is None else self._engine.stop.reason

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no save is in flight. Raises the first failure that nobody has heard: that no call of this object
        or of a Save has raised. Of further ones the message has the number.

        With `memory` it waits until the disk has the newest save, and what the disk has failed to take is tried again (not in
        a group): then it raises only what fails again."""
        self._engine.drain(timeout_of(timeout))

    def check(self) -> None:
        """Raises the newest failure of a save that was not cancelled, skipped or replaced, if there was one. Call it
        now and then while training goes on.

        With `stop_after_failures=N` it raises only while the newest N saves, or more, have all failed or were refused: the
        newest failure, with their number. What it passes over counts as heard. In a group each rank counts; they may raise at different
        steps."""
        self._engine.log_events()
        self._engine.core.check()

    def close(self, timeout: float | None = None) -> None:
        """Waits for saves in flight, and ends within `timeout` seconds (default: close_timeout, or what is left of the
        grace of stop_on). For the last quarter of the time, at most 5 s, it abandons the saves that are left: it logs
        and raises DeadlineExceeded. Otherwise it raises the first failure that nobody has heard, as `drain` does. It is
        closed then all the same. Removals of older checkpoints have two seconds in any case, and no error tells of them.
        What has not ended then, also on a hung disk, goes on behind, and keeps the root's lock until it has."""
        self._engine.close(timeout_of(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
            # What ended the block counts; `close` has logged what it raised.
