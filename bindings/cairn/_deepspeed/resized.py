"""ZeRO's state for another number of ranks: what a rank's files would hold if so many ranks had saved them.

On each rank the optimizer has flat tensors, several for each group of parameters: the weights in fp32, and the moments. A
flat tensor consists of ranges of parameters. Which range lies where is in the checkpoint: for ZeRO 1 and 2 as
param_slice_mappings; ZeRO 3 cuts each parameter into equal ranges, and a rank's lie one behind the other. Where the engine
wants them, its optimizer says. So a rank reads the ranges of its own flat tensors from whichever ranks saved them, and no
others. What is not cut comes from rank 0's files.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _core
from .._errors import Corrupt, InvalidArgument, Unsupported
from .._tree import Stored
from .._tree import tensors as tree_tensors
from .._tree.paths import listed

_FP32 = "fp32"


@dataclass(frozen=True)
class Tensor:
    """Stands for a tensor of the checkpoint in a file's contents."""

    name: str
    of: Stored


@dataclass(frozen=True)
class Range:
    """Elements of a parameter from `start` on, which lie at `offset` of a flat tensor."""

    parameter: str
    start: int
    offset: int
    numel: int


@dataclass(frozen=True)
class Flat:
    """The flat tensors of one group of parameters on one rank."""

    group: int  # Of the optimizer's param_groups.
    numel: int
    ranges: list[Range]


_Held = dict[str, list[tuple[Tensor, Range]]]  # By parameter.


@dataclass
class Plan:
    """What a rank's file holds: rank 0's contents without the tensors in `left_out`, changed by `finish` once `views` are
    read."""

    left_out: set[str] = field(default_factory=set)
    views: list[_core.Tensor | _core.TensorPart] = field(default_factory=list)
    finish: Callable[[dict[str, Any]], None] = lambda _: None

    def flat(self, flat: Flat, of: Stored, held: _Held) -> Any:
        """A flat tensor of the dtype of `of`, to be read from the saved ones that hold its ranges."""
        made = torch.zeros(flat.numel, dtype=tree_tensors.torch_dtype(of.dtype))
        for want in flat.ranges:
            for saved, have in held[want.parameter]:
                begin = max(want.start, have.start)
                numel = min(want.start + want.numel, have.start + have.numel) - begin
                if numel > 0:
                    if saved.of.dtype != of.dtype:
                        raise Corrupt(
                            f'tensor "{saved.name}": expected {of.dtype}, as in other ranks, found {saved.of}'
                        )
                    here = made.narrow(0, want.offset + begin - want.start, numel)
                    there = have.offset + begin - have.start
                    view = tree_tensors.target_view(f"{saved.name}~{there}", here)  # No two views have one name.
                    self.views.append((*view, (saved.name, saved.of.shape, (there,))))
        return made


def of_rank(path: str, rank: int) -> str:
    """The file of another rank; one that all ranks share stays."""
    return re.sub(r"zero_pp_rank_\d+_(?=mp_rank_\d+_\w+\.pt$)", f"zero_pp_rank_{rank}_", path)


def refuse(engine: Any, model: Mapping[str, Any], path: str) -> None:
    """Unsupported if DeepSpeed does not say which range lies where, or says it wrongly. `model`: the model states."""
    own = engine._config.zero_config
    config = model.get("ds_config")
    saved = config.get("zero_optimization", {}) if isinstance(config, dict) else {}
    reasons = {
        "model parallelism": model["mp_world_size"] != 1 or engine.mp_world_size != 1,
        "round_robin_gradients": saved.get("round_robin_gradients") or own.round_robin_gradients,
        "elastic_checkpoint": saved.get("elastic_checkpoint") or own.elastic_checkpoint,
    }
    for what, found in reasons.items():
        if found:
            raise Unsupported(
                f"{path} was saved by {model['dp_world_size']} ranks and is loaded by {engine.seq_dp_world_size}: "
                f"cairn.deepspeed does not do that with {what}; load it with as many ranks"
            )


def optimizer_states(engine: Any, model: Mapping[str, Any], files: list[Any], path: str) -> Plan:
    """`model`: rank 0's model states; `files`: the optimizer states of each rank that saved, both with Tensors."""
    layout: _Zero1 | _Zero3 = _Zero3() if hasattr(engine.optimizer, "fp32_partitioned_groups_flat") else _Zero1()
    states = [one["optimizer_state_dict"] for one in files]
    for state in states:
        if lacks := [key for key in layout.keys if key not in state]:
            raise Unsupported(
                f"{path}: {listed(lacks)} expected in the optimizer's state, and not found: load it with as many ranks, and "
                "with the stage of ZeRO that saved it"
            )
    shapes, groups = model["param_shapes"], states[0][layout.base]["param_groups"]
    saved, own = layout.saved(states, shapes, groups), layout.own(engine)
    _expect_whole(saved, shapes, path)
    _expect_same(_parameters(engine._get_zero_param_shapes(), own), _parameters(shapes, saved[0]), path)
    tensors = [_tensors(layout, state, flats, path) for state, flats in zip(states, saved, strict=True)]
    for of in tensors:
        if (found := [[*one] for one in of]) != (expected := [[*one] for one in tensors[0]]):
            raise Unsupported(f"{path}: expected {expected} in the optimizer's state on each rank, found {found}")
    held: dict[str, _Held] = {}  # By what it is: fp32, exp_avg, ...
    numbers: dict[str, int] = {}  # By parameter: of its saved flat tensors.
    for rank, flats in enumerate(saved):
        for number, flat in enumerate(flats):
            for one in flat.ranges:
                numbers[one.parameter] = number
                for what, tensor in tensors[rank][number].items():
                    held.setdefault(what, {}).setdefault(one.parameter, []).append((tensor, one))

    def of_sources(flat: Flat, of: Mapping[int, Any]) -> Any:
        """What the saved flat tensors that hold its parameters all have. If it is all padding: those of its group."""
        sources = sorted({numbers[one.parameter] for one in flat.ranges}) or [
            number for number, one in enumerate(saved[0]) if one.group == flat.group
        ]
        first, *others = (of[number] for number in sources)
        if any(other != first for other in others):
            names = listed([one.parameter for one in flat.ranges])
            raise Unsupported(
                f"{path}: {names} are one group here, and have states of their own each in the checkpoint"
            )
        return first

    plan, made = Plan({tensor.name for of in tensors[0] for tensor in of.values()}), []
    kinds = {number: {what: tensor.of.dtype for what, tensor in of.items()} for number, of in enumerate(tensors[0])}
    for flat in own:
        dtypes = of_sources(flat, kinds)
        made.append({what: plan.flat(flat, Stored(dtype, ()), held[what]) for what, dtype in dtypes.items()})

    def finish(contents: dict[str, Any]) -> None:
        state = contents["optimizer_state_dict"]
        base = state[layout.base]
        state[layout.fp32] = [one.pop(_FP32) for one in made]
        if base["state"]:
            uncut = {  # The number of steps.
                number: {key: value for key, value in base["state"].get(number, {}).items() if key not in of}
                for number, of in enumerate(tensors[0])
            }
            # Each has its own count of steps: the optimizer adds to it in place.
            base["state"] = {n: copy.deepcopy(of_sources(own[n], uncut)) | one for n, one in enumerate(made)}
        for group, one in enumerate(base["param_groups"]):
            one["params"] = [number for number, flat in enumerate(own) if flat.group == group]
        if hasattr(engine.optimizer, "round_robin_bit16_padding"):
            state["param_alignment_paddings"] = engine.optimizer.round_robin_bit16_padding

    plan.finish = finish
    return plan


def model_states(engine: Any, file: Callable[[int], Any], ranks: int, path: str) -> Plan:
    """The same for model states. `file` gives those of a rank, with Tensors. Of ZeRO 3 there are as many as `ranks`, and the
    parameters that the optimizer does not have are cut too; below ZeRO 3 `ranks` is 0."""
    plan, made = Plan(), {}
    first = file(0)
    if ranks and first["frozen_param_fragments"]:
        fragments = [file(rank)["frozen_param_fragments"] for rank in range(ranks)]
        for name, shape in first["frozen_param_shapes"].items():
            numel = math.prod(shape)
            have = [(of[name], _cut(name, numel, ranks, rank)) for rank, of in enumerate(fragments)]
            for tensor, _ in have:
                _expect_size(tensor, [-(-numel // ranks)], path)
            world, rank = _ranks_of(engine)
            flat = Flat(0, -(-numel // world), [_cut(name, numel, world, rank)])
            made[name] = plan.flat(flat, have[0][0].of, {name: have})
            plan.left_out.add(have[0][0].name)

    def finish(contents: dict[str, Any]) -> None:
        contents["dp_world_size"] = engine.seq_dp_world_size
        if made:
            contents["frozen_param_fragments"] = made

    plan.finish = finish
    return plan


class _Zero1:
    """ZeRO 1 and 2, and DeepSpeed's optimizer for bf16: one flat tensor for each group. What one lacks of a parameter is in
    those of the ranks before and behind."""

    fp32, base = "single_partition_of_fp32_groups", "base_optimizer_state"
    keys = (fp32, base, "param_slice_mappings", "group_paddings")

    def saved(self, states: list[Any], _shapes: list[Any], _groups: list[Any]) -> list[list[Flat]]:
        ends: dict[str, int] = {}
        found: list[list[Flat]] = []
        for state in states:
            found.append([])
            for group, mapping in enumerate(state["param_slice_mappings"]):
                ranges = []
                for name, at in mapping.items():
                    ranges.append(Range(name, ends.get(name, 0), at.start, at.numel))
                    ends[name] = ranges[-1].start + at.numel
                found[-1].append(Flat(group, max((one.offset + one.numel for one in ranges), default=0), ranges))
        return found

    def own(self, engine: Any) -> list[Flat]:
        of = engine.optimizer
        bf16 = hasattr(of, "fp32_groups_flat_partition")
        flats = of.fp32_groups_flat_partition if bf16 else of.single_partition_of_fp32_groups
        found = []
        for group, parameters in enumerate(of.bf16_groups if bf16 else of.bit16_groups):
            ranges = []
            for one in parameters:
                if at := one._hp_mapping:
                    here = at.hp_fragment_address
                    ranges.append(Range(engine.param_names[one], at.lp_fragment_address.start, here.start, here.numel))
            found.append(Flat(group, flats[group].numel(), ranges))
        return found

    def sizes(self, state: Any, number: int, flat: Flat) -> list[int]:
        """How many elements a saved flat tensor may have: that of fp32 may lack the padding."""
        least = math.prod(state[self.fp32][number].of.shape)
        return [least, least + state["group_paddings"][number]] if least >= flat.numel else [flat.numel]


class _Zero3:
    """ZeRO 3: each parameter is cut into as many ranges as there are ranks, and a group has one or more flat tensors."""

    fp32, base = "fp32_flat_groups", "optimizer_state_dict"
    keys = (fp32, base)

    def saved(self, states: list[Any], shapes: list[Any], groups: list[Any]) -> list[list[Flat]]:
        group_of = {number: group for group, one in enumerate(groups) for number in one["params"]}
        numels = [{name: math.prod(shape) for name, shape in one.items()} for one in shapes]
        world = len(states)
        return [[_flat(group_of[i], of, world, rank) for i, of in enumerate(numels)] for rank in range(world)]

    def own(self, engine: Any) -> list[Flat]:
        of = engine.optimizer
        found = []
        for number, parameters in enumerate(of.fp16_groups):
            numels = {engine.param_names[one]: one.ds_numel for one in parameters}
            found.append(_flat(of.sub_group_to_group_id[number], numels, *_ranks_of(engine)))
            numel = of.fp32_partitioned_groups_flat[number].numel()
            if numel != found[-1].numel:
                raise Unsupported(
                    f"parameters {listed([*numels])}: expected {found[-1].numel} elements of their state on this rank, found "
                    f"{numel}: cairn.deepspeed does not know how DeepSpeed cuts them here (MiCS, hpZ)"
                )
        return found

    def sizes(self, _state: Any, _number: int, flat: Flat) -> list[int]:
        return [flat.numel]


def _flat(group: int, numels: Mapping[str, int], world: int, rank: int) -> Flat:
    ranges: list[Range] = []
    offset = 0
    for name, numel in numels.items():
        ranges.append(_cut(name, numel, world, rank, offset))
        offset += -(-numel // world)
    return Flat(group, offset, ranges)


def _cut(name: str, numel: int, world: int, rank: int, offset: int = 0) -> Range:
    """The range of a parameter that ZeRO 3 gives to a rank. The last ranks may have less, or nothing."""
    each = -(-numel // world)
    start = min(rank * each, numel)
    return Range(name, start, offset, min(each, numel - start))


def _ranks_of(engine: Any) -> tuple[int, int]:
    group = engine.optimizer.dp_process_group
    return torch.distributed.get_world_size(group), torch.distributed.get_rank(group)


def _tensors(layout: _Zero1 | _Zero3, state: Any, flats: list[Flat], path: str) -> list[dict[str, Tensor]]:
    """A rank's flat tensors, by what they are: fp32, exp_avg, ..."""
    found = []
    for number, flat in enumerate(flats):
        moments = state[layout.base]["state"].get(number, {})
        cut = {what: one for what, one in moments.items() if isinstance(one, Tensor) and one.of.shape}
        found.append({_FP32: state[layout.fp32][number]} | cut)
        for tensor in found[-1].values():
            _expect_size(tensor, layout.sizes(state, number, flat), path)
    return found


def _expect_size(tensor: Tensor, sizes: list[int], path: str) -> None:
    if tensor.of.shape not in [(size,) for size in sizes]:
        raise Unsupported(
            f'{path}: tensor "{tensor.name}": expected {sizes[0]} elements, which are its ranges of parameters, found '
            f"{tensor.of}: cairn.deepspeed does not know how DeepSpeed has cut it; load it with as many ranks"
        )


def _parameters(shapes: list[Any], flats: list[Flat]) -> dict[str, tuple[tuple[int, ...], int]]:
    """The optimizer's parameters by name: shape, and number of the group. `shapes`: by flat tensor, as DeepSpeed has them."""
    return {
        name: (tuple(shape), flat.group) for of, flat in zip(shapes, flats, strict=True) for name, shape in of.items()
    }


def _expect_whole(saved: list[list[Flat]], shapes: list[Any], path: str) -> None:
    found: dict[str, int] = {}
    for one in (one for flats in saved for flat in flats for one in flat.ranges):
        found[one.parameter] = found.get(one.parameter, 0) + one.numel
    for name, shape in ((name, shape) for of in shapes for name, shape in of.items()):
        if (numel := found.pop(name, 0)) != (expected := math.prod(shape)):
            raise Corrupt(f"{path}: expected {expected} elements of {name} in the ranks' files, found {numel}")


def _expect_same(here: Mapping[str, Any], there: Mapping[str, Any], path: str) -> None:
    """InvalidArgument if the optimizer has other parameters, shapes or groups."""
    if names := [name for name in there if name not in here]:
        raise InvalidArgument(f"{path}: the checkpoint's optimizer has {listed(names)}, and the engine's has not")
    for name, (shape, group) in here.items():
        if name not in there:
            raise InvalidArgument(f"{path}: the engine's optimizer has {name}, and the checkpoint's has not")
        if (shape, group) != there[name]:
            raise InvalidArgument(
                f"{path}: {name} is {list(shape)} in group {group} of the optimizer, in the checkpoint {list(there[name][0])} "
                f"in group {there[name][1]}"
            )
