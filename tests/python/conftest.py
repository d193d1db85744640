"""What the tests share: a small checkpointer on a fresh root, and children that are killed."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cairn
import pytest
from jobs import SHARED, TREE

if TYPE_CHECKING:
    from ranks import World

# A shell that runs the tests in the background ignores Ctrl-C, for them and for what they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "only tests that use the fixture `device`, on these (cpu,cuda); default: all tests, on every device here"
    parser.addoption("--devices", type=lambda text: text.split(","), help=about)


def devices(config: pytest.Config) -> list[str]:
    if chosen := config.getoption("devices"):
        return list(chosen)
    if importlib.util.find_spec("torch") is None:
        return ["cpu"]
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", devices(metafunc.config), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("devices"):
        others = [item for item in items if "device" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device on which torch makes tensors and modules by default, for this test's thread: "cpu", and "cuda" where
    there is a GPU."""
    import torch

    if request.param != "cpu":
        torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def make(root: Path) -> Iterator[Callable[..., cairn.Checkpointer]]:
    """Opens small checkpointers on the root; closes what a test leaves open."""
    opened: list[cairn.Checkpointer] = []

    def open_one(**options: Any) -> cairn.Checkpointer:
        for one in opened:
            one.close()
        opened.append(cairn.Checkpointer(root, **{"host_memory": "8MiB", "chunk": "1MiB", "queue_depth": 2, **options}))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def worlds(root: Path) -> Iterator[Callable[..., World]]:
    """Opens jobs of several processes on the root, one after the other; ends what a test leaves."""
    from ranks import World

    made: list[World] = []

    def make(world: int = 2, options: str = SHARED, timeout: float = 20, **how: Any) -> World:
        made.append(World(world, root, **how))
        made[-1].all(TREE)
        made[-1].open(options, timeout)
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ranks(stack: ExitStack) -> Any:
    """Makes the ranks of `cairn doctor --peers`."""
    from peer_ranks import Ranks

    return lambda *given: stack.enter_context(closing(Ranks(*given)))
