"""SLURM's requeue signal with Lightning's SLURMEnvironment(auto_requeue=True).

Lightning saves inside the signal's handler, wherever training is at that moment: an optimizer may have changed half of
the parameters, and each rank may be in another step. So its handler is called between two steps instead, and on all
ranks after the same one.
"""

from __future__ import annotations

import signal
import sys
import threading
import uuid
from typing import Any

from .._ranks.stopping import Agreement

_TIMEOUT = 600.0  # Seconds that a rank waits for the others' threads.


class Requeue:
    """The hooks of a callback that comes last, so that the other callbacks' states are those of the same step."""

    def __init__(self) -> None:
        self._handler: Any = None  # Lightning's, of `_signal`.
        self._signal: int = 0
        self._heard: str | None = None
        self._stepped = 0  # The step that ended last.
        self._agreement: Agreement | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        environment = trainer._accelerator_connector.cluster_environment
        number = getattr(environment, "requeue_signal", None)
        if number is None or not environment.auto_requeue:
            return
        handler = signal.getsignal(number)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return
        self._handler, self._signal, self._heard, self._stepped = handler, number, None, trainer.global_step
        signal.signal(number, self._hear)  # At the end Lightning puts back the handlers that it found.
        if trainer.world_size > 1:
            store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
            prefix = f"cairn/lightning/{trainer.strategy.broadcast(uuid.uuid4().hex)}"
            self._agreement = Agreement(store, trainer.global_rank, trainer.world_size, prefix)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        # Gradients that are still accumulated would not be saved.
        if self._handler is None or (trainer.global_step == self._stepped and trainer.optimizers):
            return
        self._stepped = trainer.global_step
        if self._agreement is not None:
            if self._agreement.reached(self._heard, _TIMEOUT):
                self._agreement.leave()
                self._call()
        elif self._heard is not None:
            self._call()

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self._handler is not None and self._agreement is None and self._heard is not None:
            self._call()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._agreement is not None:
            self._agreement.leave()
        self._handler = self._agreement = None

    def _hear(self, number: int, _: Any) -> None:
        self._heard = signal.Signals(number).name

    def _call(self) -> None:
        """Lightning saves, and asks SLURM to queue the job again. Training goes on until SLURM ends it."""
        handler, self._handler = self._handler, None
        signal.signal(self._signal, handler)
        handler(self._signal, None)
