"""What only the checkpoint has, not the state that it is loaded into: named in the log, or refused."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from .._errors import InvalidArgument, counted
from .._tree.optimizer_states import MARKS
from .._tree.paths import listed

_log = logging.getLogger("cairn")
# Of torch's optimizers, nested ("optim.state.0.exp_avg") or flat ("state.layer.weight.exp_avg"). What stands before is the
# optimizer's place.
_GROUPS, _STATE, _EITHER = (
    re.compile(rf"(?:^|(?<=\.))(?:{key})(?=\.|$)") for key in ("param_groups", "state", "param_groups|state")
)
_MAX_LISTED = 5  # Names in one message.
OTHER_CLASS = "the state of another optimizer class"


def tell_left_out(
    where: str,
    paths: Mapping[str, Sequence[str | int]],
    tensors: Container[str],
    loaded: set[str],
    sized: Iterable[str],
    strict: bool,
    *,
    quiet: bool = False,
    parts: bool = False,
) -> None:
    """Logs, unless `quiet`, which of the checkpoint's names no rank loads. `sized` are those that ranks would ask for: a tensor without
    elements is never asked for. `tensors`: the names of tensors. Whole keys at the top may be left out on purpose, or
    forgotten: a warning, too, unless a plug knows that it wants `parts`.

    InvalidArgument, if `strict`, for state of an optimizer of which something else is loaded: its moments would begin
    anew, and nobody would say so.
    """
    only = [fqn for fqn in sized if fqn not in loaded]
    if not only or (quiet and not strict):
        return
    optimizers = _places(_GROUPS, paths) & _places(_EITHER, loaded)
    state = [fqn for fqn in only if optimizers & _places(_STATE, [fqn])] if optimizers else []
    if state:
        told = f"{where}: {counted(len(state), 'name')} of an optimizer's state only in the checkpoint: {listed(state, _MAX_LISTED)}"
        if strict:
            raise InvalidArgument(
                f"{told}. Make the state before the load, as get_optimizer_state_dict of torch.distributed.checkpoint."
                "state_dict does, and freeze parameters after it; or leave it out with strict=False"
            )
        _log.warning("%s: left out", told)
    marks = [fqn for fqn in only if fqn.rpartition(".")[2] in MARKS and optimizers & _places(_GROUPS, [fqn])]
    if marks and not state:
        tell_unlike(where, OTHER_CLASS, [f'only the checkpoint has "{fqn}"' for fqn in marks], strict)
    if quiet:
        return
    tops = {paths[fqn][0] for fqn in loaded if fqn in paths}
    rest = sorted({*only}.difference(state))
    # A model's weights may lie at the top themselves.
    flat = any(len(paths[fqn]) == 1 and fqn in tensors for fqn in loaded if fqn in paths)
    beside = [fqn for fqn in rest if (paths[fqn][0] in tops if len(paths[fqn]) > 1 else flat and fqn in tensors)]
    if beside:
        told, of = listed(beside, _MAX_LISTED), counted(len(beside), "name")
        _log.warning("%s: left out %s that only the checkpoint has: %s", where, of, told)
    if whole := Counter(str(paths[fqn][0]) for fqn in {*rest}.difference(beside)):
        keys = [f"{key} ({of} names)" if of > 1 else key for key, of in sorted(whole.items())]
        level = logging.INFO if parts else logging.WARNING
        _log.log(level, "%s: left out what only the checkpoint has: %s", where, listed(keys, _MAX_LISTED))


def tell_unlike(where: str, what: str, unlike: list[str], strict: bool) -> None:
    """InvalidArgument, or if not `strict` a warning, for state of an optimizer of another kind: `what`."""
    told = f"{where}: {what}: {listed(unlike, _MAX_LISTED)}"
    if strict:
        raise InvalidArgument(
            f"{told}. Leave the optimizer out of the state to load into, or load with strict=False: it goes on as the "
            "options of the checkpoint say"
        )
    _log.warning("%s", told)


def _places(of: re.Pattern[str], names: Iterable[str]) -> set[str]:
    return {fqn[: found.start()] for fqn in names for found in of.finditer(fqn)}
