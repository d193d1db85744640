"""The fence before each optimizer step: finds the optimizers in what the user gives, and works under torch.compile.
And what finds a step that nobody has fenced: see `watch_steps`.

Uses torch only if the user has imported it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import FailedPrecondition, InvalidArgument
from ._memory import cloned

if TYPE_CHECKING:
    from ._engine import Engine

COPIED_BUFFER = 1 << 20  # Bytes of the largest buffer of a module that a save copies in the call.


_handles = itertools.count(1)
_by_handle: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()
_defined = False
_defining = threading.Lock()
_watching_steps = False
_captured: weakref.WeakSet[Any] = weakref.WeakSet()  # Optimizers whose step is a part of a CUDA graph.
_holders: weakref.WeakSet[Any] = weakref.WeakSet()  # See `held_tensors`.
_adding = threading.Lock()
# Of each optimizer within a step: what that may write.
_stepping: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

_NO_REPLAY = (
    "its replay would not fence. Call Checkpointer.fence(stream) before each replay, outside of the capture, and "
    "protect() only optimizers whose steps are not captured"
)


def define_op() -> None:
    """Defines torch.ops.cairn.fence, the fence in a compiled graph. It is registered as an effect, so that the compiler
    neither removes it nor moves it past another effect."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "library"):
        return
    with _defining:
        if not _defined:
            _define(torch)


def _define(torch: Any) -> None:
    global _defined
    from torch._higher_order_ops import effects

    if not hasattr(effects, "_register_effectful_op") or not hasattr(torch.ops.prims, "_sink_tokens"):
        return  # This torch would drop an op without results, so a compiled fence must be an error.

    def fence(handle: int) -> None:
        refuse_capture()
        if engine := _by_handle.get(handle):
            engine.fence()

    made = torch.library.custom_op("cairn::fence", fence, mutates_args=(), schema="(int handle) -> ()")

    def trace(handle: int) -> None:  # `handle` may be a symbol here.
        _refuse_cudagraphs()
        for engine in list(_by_handle.values()):
            engine.core.ignore_versions()

    made.register_fake(trace)
    effects._register_effectful_op(torch.ops.cairn.fence.default, effects._EffectType.ORDERED)
    # Torch 2.7 and versions close to it know the effect, but still remove what the op becomes, as its result is unused.
    for lowered in (torch.ops.higher_order.with_effects, torch.ops.prims._sink_tokens.default):
        torch.fx.node.has_side_effect(lowered)
    _defined = True


def refuse_capture() -> None:
    """Raises FailedPrecondition while the current stream is captured in a CUDA graph: a fence would order the capture,
    which runs nothing, and no replay."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise FailedPrecondition(f"a fence cannot be captured in a CUDA graph: {_NO_REPLAY}")


def _refuse_cudagraphs() -> None:
    """Raises FailedPrecondition while torch.compile makes CUDA graphs. Inductor then also moves ops between graphs
    (graph_partition), and may move what a fence must precede."""
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None and inductor.triton.cudagraphs:
        raise FailedPrecondition(
            "a fence cannot be a part of code that torch.compile captures in CUDA graphs, as it does with "
            'mode="reduce-overhead" and mode="max-autotune", with graph_partition or without: compile that code with '
            'mode="default" or mode="max-autotune-no-cudagraphs", or call Checkpointer.fence() before it, outside of '
            "torch.compile"
        )


def watch_steps() -> None:
    """Hooks every optimizer of the process. Fused kernels, and the local tensors of a DTensor, change without a new
    version, so a save would not see that a step has written under it."""
    global _watching_steps
    torch = sys.modules.get("torch")
    if _watching_steps or torch is None or not hasattr(torch, "optim"):
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_begin_steps)
    register_optimizer_step_post_hook(_end_steps)
    _watching_steps = True


def _begin_steps(optimizer: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    torch = sys.modules["torch"]
    if not torch.compiler.is_compiling():
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            _captured.add(optimizer)
        note_holder(optimizer)
        engines = list(_by_handle.values())
        has_closure = len(args) > 1 or named.get("closure") is not None
        unchecked = any(engine.has_unchecked for engine in engines)
        _stepping[optimizer] = _trained_by(optimizer, has_closure) if unchecked else []
        for engine in engines:
            engine.begin_step()


def _end_steps(optimizer: Any, *_: Any) -> None:
    if not sys.modules["torch"].compiler.is_compiling():
        for engine in list(_by_handle.values()):
            engine.end_step(optimizer)
        _stepping.pop(optimizer, None)


def captured_optimizers() -> list[Any]:
    """Those whose steps are replayed in CUDA graphs: at any time, and without a hook."""
    return list(_captured)


def note_holder(holder: Any) -> None:
    """Of a module or an optimizer: see `held_tensors`."""
    if holder not in _holders:
        with _adding:
            _holders.add(holder)


def held_tensors() -> Iterator[Any]:
    """The tensors of the optimizers that have stepped, and of the modules that were saved."""
    torch = sys.modules["torch"]
    with _adding:
        holders = [*_holders]
    for holder in holders:
        if isinstance(holder, torch.nn.Module):
            yield from holder.parameters()
            yield from holder.buffers()
        else:
            yield from itertools.chain(*(group["params"] for group in holder.param_groups))


def _trained_by(optimizer: Any, has_closure: bool = False) -> list[Any]:
    """The parameters that a step writes: those with a gradient, which a closure may make within the step."""
    parameters = itertools.chain(*(group["params"] for group in optimizer.param_groups))
    return [one for one in parameters if one.grad is not None or (has_closure and one.requires_grad)]


def written_by(optimizer: Any) -> list[tuple[int, int]]:
    """(address, bytes) of what a step has written: parameters that had a gradient, and their state. The step, or a hook of
    its own, may have taken the gradients away."""
    torch = sys.modules["torch"]
    written: list[tuple[int, int]] = []
    for parameter in {id(one): one for one in [*_stepping.get(optimizer, ()), *_trained_by(optimizer)]}.values():
        state = optimizer.state.get(parameter)  # Of another library's optimizer it may be anything.
        for tensor in (parameter, *(state.values() if isinstance(state, Mapping) else ())):
            local = getattr(tensor, "_local_tensor", tensor)  # Of a DTensor.
            if isinstance(local, torch.Tensor) and local.layout == torch.strided:
                written.append((local.data_ptr(), local.nbytes))
    return written


def inner_optimizer(given: Any) -> Any:
    """The optimizer itself: Accelerate's and Lightning's wrappers are optimizers too, but only the inner one steps."""
    torch = sys.modules["torch"]
    while isinstance(inner := getattr(given, "optimizer", None), torch.optim.Optimizer):
        given = inner
    return given


class Hook:
    """Calls `act`. A copy of what it is hooked to (deepcopy, pickle, torch.save) takes nothing of Cairn along: its hook
    does nothing."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __call__(self, *given: Any, **named: Any) -> None:
        self._act(*given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        # Does nothing, whatever it is given, also where Cairn is not installed.
        return getattr, (contextlib.nullcontext(), "__exit__")


class Guard:
    """Hooks that fence before optimizer steps, and before a state dict is loaded into a protected object."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._handle = next(_handles)
        _by_handle[self._handle] = engine
        define_op()
        watch_steps()
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, given: Any) -> None:
        """Raises InvalidArgument, with the type, for objects that call no hooks. Adding again changes nothing."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise InvalidArgument(f"protect expects torch optimizers or modules, found {_name(given)} and no torch")
        if isinstance(given, torch.nn.Module):
            # Public since torch 2.5.
            public = getattr(given, "register_load_state_dict_pre_hook", None)
            self._hook(given, public or given._register_load_state_dict_pre_hook)
            for optimizer in _in_backward(given):
                self._add_optimizer(optimizer, _name(given))
        else:
            self._add_optimizer(given, _name(given))

    def _add_optimizer(self, given: Any, name: str) -> None:
        torch = sys.modules["torch"]
        optimizer = inner_optimizer(given)
        hooked = getattr(type(optimizer).step, "hooked", False) if hasattr(type(optimizer), "step") else False
        if not isinstance(optimizer, torch.optim.Optimizer) or not hooked:
            raise InvalidArgument(
                f"{name} never calls torch's step hooks: call Checkpointer.fence() before each of its steps instead"
            )
        if optimizer in _captured:
            raise FailedPrecondition(f"a step of {name} was captured in a CUDA graph: {_NO_REPLAY}")
        if self._hook(optimizer, optimizer.register_step_pre_hook):
            optimizer.register_load_state_dict_pre_hook(Hook(self._before))

    def _hook(self, target: Any, register: Callable[[Any], Any]) -> bool:
        if target in self._hooked:
            return False
        self._hooked.add(target)
        register(Hook(self._before))
        return True

    def compiled(self) -> bool:
        """Whether this runs under torch.compile: then the op was added to the graph."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.compiler.is_compiling():
            return False
        torch.ops.cairn.fence(self._handle)
        return True

    def _before(self, *_: Any, **__: Any) -> None:
        if self.compiled():
            return
        refuse_capture()
        if self._engine.held:
            self._engine.fence()


def _in_backward(module: Any) -> Iterator[Any]:
    """The optimizers that step within backward (torch.distributed.optim._apply_optimizer_in_backward)."""
    for parameter in module.parameters():
        yield from getattr(parameter, "_in_backward_optimizers", ())


def state_without_races(holder: Any) -> Any:
    """An object's state_dict(), with copies of the buffers that forward changes.

    Forward writes a module's buffers (BatchNorm's running means), and no fence precedes it. So buffers of up to 1 MiB
    are copied now, in the order of the current stream.
    """
    state = holder.state_dict()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(holder, torch.nn.Module):
        return state
    for name, buffer in holder.named_buffers():
        if name in state and buffer.layout == torch.strided and buffer.nbytes <= COPIED_BUFFER:
            state[name] = cloned(state[name])
    return state


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
