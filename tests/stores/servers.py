"""Object stores for tests: real servers, and a proxy in front of them that answers as stores do on bad days."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from jobs import until
from peer_ranks import free_port

KEY, SECRET = "the-key-of-tests", "the-secret-of-tests"
BUCKET = "bucket"


def program(name: str) -> str:
    """Of PyPI's package, or else the one in PATH."""
    for folder in sys.path:
        if os.access(found := os.path.join(folder, "bin", name), os.X_OK):
            return found
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


class Server:
    """A process that can be killed and started again with what it had. It dies with the process that started it."""

    name: str
    address: str  # HOST:PORT

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        for _ in range(5):  # A port may be taken by somebody else.
            command = ["setpriv", "--pdeathsig", "KILL", *self.command()]
            with open(self.folder / "server.log", "ab") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            with contextlib.suppress(AssertionError):
                until(self._answers, 300)
                return
            self.kill()
        pytest.fail((self.folder / "server.log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None
        try:
            connection = http.client.HTTPConnection(self.address, timeout=60)
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except OSError:
            return False


class ServeS3(Server):
    """`rclone serve s3` over a folder: objects are files, which tests may damage."""

    name = "rclone serve s3"

    def command(self) -> list[str]:
        self.address = f"127.0.0.1:{free_port()}"
        (self.folder / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
        return [
            *(program("rclone"), "serve", "s3", str(self.folder / "objects"), "--addr", self.address),
            # With 0s it spins, and takes a core: it looks for what to forget twice in that time.
            *("--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--dir-cache-time", "10ms"),
        ]

    @property
    def objects(self) -> Path:
        return self.folder / "objects" / BUCKET


class Seaweed(Server):
    """SeaweedFS: a distributed store with uploads in parts, as clouds have them."""

    name = "seaweedfs"

    def command(self) -> list[str]:
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        self.address = f"127.0.0.1:{ports['s3']}"
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir(exist_ok=True)
        return [
            *(program("weed"), "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-master.volumeSizeLimitMB=64", "-volume.max=20", "-master.telemetry=false", "-filer", "-s3"),
            # Without these two, which would be at ports that all servers share.
            *(f"-s3.config={self.folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{name}.port={port}" for name, port in ports.items()),
            *(f"-{name}.port.grpc={free_port()}" for name in ("master", "volume", "filer", "s3")),
        ]


Answer = Callable[[str, str], "int | str | None"]  # Of method and path: a status, "cut", "silent", or None: pass it on.


class Proxy:
    """Passes requests on, but for those that `answer` has an answer to."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.answer: Answer = lambda method, path: None
        self.seen: list[tuple[str, str]] = []
        self.released = threading.Event()  # Ends silence.
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.seen.append((self.command, self.path))
                answer = proxy.answer(self.command, self.path)
                if answer is None:
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        return self._pass_on(body)
                    answer = "cut"
                if answer == "silent":
                    proxy.released.wait()
                if isinstance(answer, str):
                    self.close_connection = True
                    return
                code = {400: "ExpiredToken", 403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}[answer]
                text = f"<Error><Code>{code}</Code><Message>the proxy says {answer}</Message></Error>".encode()
                self.send_response(answer)
                self.send_header("Content-Type", "application/xml")
                self._finish(text)

            def _pass_on(self, body: bytes) -> None:
                connection = http.client.HTTPConnection(proxy.upstream, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                reply = connection.getresponse()
                content = reply.read()
                self.send_response_only(reply.status, reply.reason)
                for name, value in reply.getheaders():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self._finish(content, reply.getheader("Content-Length"))

            def _finish(self, content: bytes, length: str | None = None) -> None:
                self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # A client that was killed.

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def proxy_to(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


def environment(address: str) -> dict[str, str]:
    """Of a process that uses that store: as the clouds' own tools have it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    return ours | {
        "AWS_ENDPOINT_URL_S3": f"http://{address}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "PATH": os.pathsep.join([os.path.dirname(program("rclone")), os.environ["PATH"]]),
    }


def rclone(address: str, *arguments: str) -> str:
    """What it prints, as users call it: without Cairn."""
    settings = {"RCLONE_S3_PROVIDER": "Other", "RCLONE_S3_ENV_AUTH": "true", "RCLONE_S3_ENDPOINT": f"http://{address}"}
    done = subprocess.run(
        [program("rclone"), *arguments],
        env=environment(address) | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
