"""What a Checkpointer does to read a checkpoint: restore it into a tree, or load it as a new one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ._arguments import callback, optional_step
from ._engine import Engine
from ._paths import checkpoint_path
from ._ranks.reading import Reading
from ._tree.casts import allows_loss
from ._tree.tensors import placement_of


class Restoring(Engine):
    """Reads checkpoints. See _ranks.reading for how ranks agree."""

    _reading: Reading

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
        fails, what was committed before is read; its error stays with its Save. Raises NotFound only if there is no such checkpoint (retention does not remove the
        newest while it is read); Corrupt if it is damaged or cannot be read from the disk; InvalidArgument, with both
        lists, if tree and checkpoint differ. After Corrupt the tensors' contents are unspecified.

        `fall_back` permits an older checkpoint if the one that is read turns out to be Corrupt, and logs which one was
        passed over and why. Only what the tree needs is read and verified; `verify` reads everything. InvalidArgument, with
        strict=False, if the older one lacks a tensor into which a part of the damaged one was read.

        A torch optimizer must have the saved class, groups, parameters and shapes, and no state that the checkpoint lacks.
        Its state follows the parameters' names where both sides have them: param_names, or those of their module, if it is
        in both trees. Else it follows the order of the parameters. It keeps its saved dtypes.

        With `strict=False` names may be on one side only: what the checkpoint lacks stays as it is in the tree, what the
        tree lacks is left out, and a warning lists both. That includes an optimizer's parameters, if both sides have
        their names. Shapes and dtypes must still agree. A tensor of another dtype is converted, and logged, if it holds
        every value of the checkpoint's (float32 for bfloat16); with `cast="allow"` any is, also where that loses
        something. The names of a compiled
        module (`_orig_mod.`) match the plain module's, and the other way round. Tensors that are created are on the CPU,
        and a torch optimizer's on the device of their parameter, into which they are read; or on the device
        `map_location` ("cpu", "cuda:0"). Those of the tree stay where they are.

        In a group every rank calls it, with the same step and fall_back (else InvalidArgument). Rank 0 chooses, each
        rank reads its own state and what is replicated, and all succeed or all raise. If a checkpoint is Corrupt on one
        rank, all ranks pass over it. Raises FailedPrecondition if a rank cannot find what rank 0 has chosen, after
        several choices. If another number of ranks saved the checkpoint, only what is replicated can be read: leave the
        other keys out of the tree.
        """
        self._log_events()
        self._core.fence(-1, 0, None)  # The tensors may still be read by a save.
        self._release_captured()
        place = placement_of(map_location)
        return self._reading.restore(
            tree,
            optional_step(step),
            checkpoint_path(folder, "folder") if folder else "",
            fall_back,
            callback("progress", progress),
            strict=strict,
            cast=allows_loss(cast),
            place=place,
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
        return self._reading.load(
            optional_step(step),
            names,
            lazy,
            checkpoint_path(folder, "folder") if folder else "",
            callback("progress", progress),
            placement_of(map_location),
        )
