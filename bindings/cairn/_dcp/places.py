"""Where DCP's paths lead in a state dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.checkpoint._traverse import get_element


class Places:
    """The places of plain values in a state dict. DCP's paths have the text of each key: its own planners put the value for
    the key 0, as optimizers have, beside it, at "0", where nobody looks."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._keys: dict[int, dict[str, Any]] = {}  # Of dicts, by their id, each key by its text.

    def put(self, path: Sequence[str | int], value: Any) -> None:
        *way, last = self._own(path)
        at = self._state
        for key in way:
            at = at[key]
        at[last] = value

    def load_bytes(self, planner: Any, item: Any, data: Any) -> None:
        """One of DCP's planners' load_bytes, into the place that `put` finds."""
        path = planner.mappings.get(item.dest_index.fqn, ())
        if self._own(path) == [*path]:
            planner.load_bytes(item, data)
            return
        planner.original_state_dict = {}
        try:
            planner.load_bytes(item, data)
            value = get_element(planner.original_state_dict, tuple(path))
        finally:
            planner.original_state_dict = self._state
        self.put(path, value)

    def _own(self, path: Sequence[str | int]) -> list[Any]:
        """The path with the state dict's own keys."""
        own: list[Any] = []
        at = self._state
        for part in path:
            key: Any = part
            if isinstance(at, Mapping) and part not in at:
                texts = self._keys.get(id(at))
                if texts is None:
                    texts = self._keys[id(at)] = {str(one): one for one in at}
                key = texts.get(str(part), part)
            own.append(key)
            at = at[key]
        return own
