"""Serves a Checkpointer's metrics to Prometheus, where prometheus_client is installed. The numbers and their text are the
library's: what is served is what a `metrics_file` has."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from . import _threads
from ._errors import Error, FailedPrecondition, Unsupported

if TYPE_CHECKING:
    from ._core import Checkpointer as CoreCheckpointer

_PATIENCE = 5.0  # Seconds for what a client sends: its thread must end.
_ENDING = 1.0  # Seconds for the thread to end.
# What torchrun, Open MPI, Intel MPI and SLURM tell each rank of its place on its node.
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_open: weakref.WeakSet[WSGIServer] = weakref.WeakSet()


def port_of_rank(port: int, rank: int, world: int) -> int:
    """Ranks of one node need a port each: `port` and so many more as the launcher says is the rank's number there, or
    else its number in the group. 0 is any free one."""
    if port == 0 or world == 1:
        return port
    said = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), "")
    return port + (int(said) if said else rank)


class Collector:
    """For a registry of prometheus_client. Collects nothing once the Checkpointer is gone or closed."""

    def __init__(self, core: CoreCheckpointer) -> None:
        self._core = weakref.ref(core)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.parser import text_string_to_metric_families

        core = self._core()
        if core is None:
            return
        with contextlib.suppress(Error):
            yield from text_string_to_metric_families(core.metrics_text())


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE

    def log_message(self, format: str, *_arguments: Any) -> None:
        """Nothing: scrapes are no news."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True  # One for each connection: a client that stands still keeps no other waiting.
    block_on_close = False
    ending = False

    def server_bind(self) -> None:
        # HTTPServer's asks the name server for this host's name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, _request: Any, _address: Any) -> None:
        """A client that has gone is no error."""


class MetricsServer:
    """Listens at once, so that a port that is taken is found before anything is opened. Serves nothing before `serve`."""

    def __init__(self, port: int) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise Unsupported(
                f"metrics_port: needs prometheus_client, which cannot be imported ({error}): pip install prometheus-client, "
                "or give metrics_file, which needs no package"
            ) from None
        self._registry = prometheus_client.CollectorRegistry()
        try:
            self._server = _Server(("", port), _Handler)
        except (OSError, OverflowError) as error:
            raise FailedPrecondition(
                f"metrics_port: port {port} cannot be listened at ({error}): give another one, for each Checkpointer "
                "and each rank of a node one of its own, or 0 for any"
            ) from None
        self._server.set_app(prometheus_client.make_wsgi_app(self._registry))
        self.port: int = self._server.server_port
        self._thread: threading.Thread | None = None
        _open.add(self._server)

    def serve(self, core: CoreCheckpointer) -> None:
        self._registry.register(Collector(core))
        thread = threading.Thread(target=_serve, args=(self._server,), name="cairn-scrape", daemon=True)
        self._thread = _threads.serve(self, thread)

    def stop(self) -> None:
        """Releases the port. Does not wait for a client that a scrape under way waits for."""
        if self._server.ending:
            return
        self._server.ending = True
        if self._thread is not None:
            with contextlib.suppress(OSError):  # Wakes the thread.
                socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE).close()
        self._server.server_close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDING)


def _serve(server: _Server) -> None:
    with contextlib.suppress(OSError, ValueError):  # It was closed meanwhile.
        while not server.ending:
            server.handle_request()


def _forget() -> None:
    # A forked child inherits the sockets: the port would be taken as long as it lives.
    for server in list(_open):
        server.socket.close()


os.register_at_fork(after_in_child=_forget)
