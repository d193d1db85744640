"""Ranks of a DeepSpeed job, as processes of one server that has imported everything once."""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import cairn.deepspeed
import deepspeed
import torch
import torch.distributed as dist
from cairn._tree import Stored

WIDTH = 33  # No number of ranks divides its tensors.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class Job:
    """`work(*arguments)` on so many ranks."""

    def __init__(self, world: int, store: Path, work: Callable[..., Any], *arguments: Any) -> None:
        store.unlink(missing_ok=True)
        self.ranks: list[Any] = []
        self._found = []
        for rank in range(world):
            found, finds = _processes.Pipe(duplex=False)
            self.ranks.append(_processes.Process(target=_run, args=(rank, world, store, finds, work, arguments)))
            self.ranks[-1].start()
            finds.close()
            self._found.append(found)

    def finish(self) -> list[Any]:
        """What each rank has returned, its exception's text, or None if it was killed."""
        found = []
        for rank, one in zip(self.ranks, self._found, strict=True):
            try:
                found.append(one.recv())
            except EOFError:
                found.append(None)
            rank.join()
        return found


def _run(rank: int, world: int, store: Path, finds: Any, work: Callable[..., Any], arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world)
    deepspeed.init_distributed(dist_backend="gloo")
    try:
        found = work(*arguments)
    except Exception as error:  # noqa: BLE001 (the test looks at it)
        traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
    finds.send(found)
    os._exit(0)  # A rank that waits for one that is gone must not keep the others.


def start(root: Path, stage: int, frozen: str = "2.bias", biases_first: bool = False, **config: Any) -> Any:
    """An engine that is attached to `root`. Its optimizer has a group of the matrices, and one of the others."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.Linear(WIDTH, 7),
        torch.nn.Linear(7, 1, bias=False),
    )
    model.get_parameter(frozen).requires_grad_(False)
    first = [one for one in model.parameters() if (one.dim() > 1) != biases_first]
    others = [one for one in model.parameters() if (one.dim() > 1) == biases_first]
    optimizer = torch.optim.AdamW([{"params": first}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 10, **config.pop("zero", {})},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
            **config,
        },
    )
    cairn.deepspeed.attach(engine, root, host_memory="64MiB", keep_last=0)
    return engine


def train(engine: Any, until: int) -> None:
    """All ranks have the same batch, so that any power of two of them averages the same gradients."""
    while engine.global_steps < until:
        torch.manual_seed(engine.global_steps)
        batch = torch.randn(4, WIDTH).to(next(engine.module.parameters()).dtype)
        engine.backward(engine(batch).square().mean())
        engine.step()


def state(engine: Any) -> dict[str, Any]:
    """By parameter what DeepSpeed itself says of it, on rank 0; the whole of what is not of parameters."""
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        found = {f"{name}/weight": one.detach().clone() for name, one in engine.module.named_parameters()}
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._hp_optimizer_states_linked = (
            False  # A load, and the first step of several groups, leave out some.
        )
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, one in engine.module.named_parameters():
        if one.requires_grad:
            found[f"{name}/fp32"] = deepspeed.utils.safe_get_full_fp32_param(one)
            for what in ("exp_avg", "exp_avg_sq"):
                found[f"{name}/{what}"] = deepspeed.utils.safe_get_full_optimizer_state(one, what)
    inner = engine.basic_optimizer if engine.zero_optimization_stage() < 3 else engine.optimizer.optimizer
    return {name: one.float().numpy() for name, one in found.items()} | {
        "scheduler": engine.lr_scheduler.state_dict(),
        "steps": sorted({float(one["step"]) for one in inner.state.values()}),
        "groups": [{key: value for key, value in one.items() if key != "params"} for one in inner.param_groups],
        "global_steps": engine.global_steps,
    }


def work(root: Path, stage: int, until: int, how: dict[str, Any]) -> Any:
    """Loads the newest checkpoint if there is one; trains and saves, if there is a step to train. The states before and after training."""
    engine = start(root, stage, **how)
    engine.load_checkpoint(str(root))
    before = state(engine) if engine.global_steps else None
    if until > engine.global_steps:
        train(engine, until)
        engine.save_checkpoint(str(root))
    after = state(engine)
    engine.checkpoint_engine.close()
    return before, after


def _kill_at(engine: Any, call: str, which: int = 1) -> None:
    """Rank 1 is killed in its call of the checkpoint engine's method of this name."""
    calls = iter(range(which))

    def killed(*arguments: Any, **options: Any) -> Any:
        if next(calls) == which - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    method = getattr(engine.checkpoint_engine, call)
    if dist.get_rank() == 1:
        setattr(engine.checkpoint_engine, call, killed)


def killed_in_a_save(root: Path, stage: int, until: int) -> None:
    engine = start(root, stage)
    engine.load_checkpoint(str(root))
    train(engine, until)
    _kill_at(engine, "commit")
    engine.save_checkpoint(str(root))
    engine.checkpoint_engine.close()


def killed_in_a_load(root: Path, stage: int) -> None:
    engine = start(root, stage)
    _kill_at(engine, "load", 3)  # Of the optimizer's states, after twice those of the model.
    engine.load_checkpoint(str(root))
    dist.barrier()


def own_client_state(root: Path) -> tuple[Any, list[str]]:
    """The client state that a rank gets, and what is logged."""
    engine, told = start(root, 3), logging.getLogger("cairn")
    seen: list[str] = []
    told.addFilter(lambda record: seen.append(record.getMessage()) is None)
    _, client = engine.load_checkpoint(str(root))
    train(engine, engine.global_steps + 1)
    engine.save_checkpoint(str(root), client_state={"own": dist.get_rank()})
    engine.checkpoint_engine.close()
    return client and client["own"], list(dict.fromkeys(seen))


_outline = cairn.deepspeed._outline


def _other_moments(*arguments: Any) -> Any:
    """A file's outline, as if the moments were no flat tensors."""
    made = _outline(*arguments)
    for one in made.get("optimizer_state_dict", {}).get("base_optimizer_state", {}).get("state", {}).values():
        one["exp_avg"] = dataclasses.replace(one["exp_avg"], of=Stored("F32", (5, 5)))
    return made


def refused(root: Path) -> dict[str, str]:
    """What is raised, by what is tried."""
    tried: dict[str, dict[str, Any]] = {
        "round robin": {"stage": 1, "zero": {"round_robin_gradients": True}},
        "frozen": {"stage": 1, "frozen": "3.weight"},
        "groups": {"stage": 1, "biases_first": True},
        "cut otherwise": {"stage": 1},
    }
    found = {}
    for what, how in tried.items():
        engine = start(root, **how)
        if what == "cut otherwise":
            cairn.deepspeed._outline = _other_moments
        try:
            engine.load_checkpoint(str(root))
            found[what] = "nothing"
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found[what] = f"{type(error).__name__}: {error}"
        engine.checkpoint_engine.close()
    return found
