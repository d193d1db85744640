"""The default random generators as one object of a tree."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

from ._errors import InvalidArgument, Unsupported, counted


class RngState:
    """Puts the default random generators into a checkpoint: `{"model": model, ..., "rng": RngState()}`.

    Covers `random`, numpy's global (legacy) generator, torch's CPU generator and, once CUDA is initialised, the default
    generator of each visible CUDA device. Numpy and torch count only if they are imported. The object itself holds no
    state. Generators of your own (numpy.random.Generator, torch.Generator) are not covered. A DataLoader needs one of its
    own, `generator=torch.Generator()`: beginning an epoch anew after a restore would draw from the default one.
    """

    def state_dict(self) -> dict[str, Any]:
        """Copies of the generators' states: "python", and "numpy", "torch", "cuda" where they apply."""
        state: dict[str, Any] = {"python": random.getstate()}
        if numpy := sys.modules.get("numpy"):
            state["numpy"] = numpy.random.get_state(legacy=False)
        if torch := sys.modules.get("torch"):
            state["torch"] = torch.get_rng_state()
            if torch.cuda.is_initialized():
                state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets each generator that has a state in `state`, importing its module; the others stay as they are.

        Raises Unsupported if a module is not installed, InvalidArgument if there are fewer CUDA devices than states.
        Then no generator is changed.
        """
        modules = {}
        for name in ("numpy", "torch"):
            if name in state:
                try:
                    modules[name] = importlib.import_module(name)
                except ImportError as error:
                    raise Unsupported(f"the checkpoint holds the state of {name}'s generator: {error}") from error
        if "cuda" in state:
            cuda = importlib.import_module("torch").cuda
            if len(state["cuda"]) > cuda.device_count():
                raise InvalidArgument(
                    f"expected {counted(len(state['cuda']), 'CUDA device')}, whose generators the checkpoint holds, "
                    f"found {cuda.device_count()}; None instead of RngState() leaves every generator as it is"
                )
            cuda.set_rng_state_all(state["cuda"])
        random.setstate(state["python"])
        if "numpy" in state:
            modules["numpy"].random.set_state(state["numpy"])
        if "torch" in state:
            modules["torch"].set_rng_state(state["torch"])
