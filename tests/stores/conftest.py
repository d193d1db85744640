"""A bucket in each real server, once for all tests; what each test keeps there has a prefix of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "python"))

import servers


@pytest.fixture(scope="session", params=[servers.ServeS3, servers.Seaweed], ids=lambda server: server.name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    started = request.param(tmp_path_factory.mktemp("server"))
    try:
        servers.rclone(started.address, "mkdir", f":s3:{servers.BUCKET}")
        yield started
    finally:
        started.kill()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[servers.ServeS3]:
    """One of the test's own, which it may kill."""
    started = servers.ServeS3(tmp_path)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    return f"s3://{servers.BUCKET}/{request.node.name.split('[')[0]}"
