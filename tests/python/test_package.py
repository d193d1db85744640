"""What is installed works alone: without torch, and without the libraries that it was compiled with."""

import inspect
import os
import pydoc
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cairn
import pytest
from jobs import COMMAND

FOLDER = Path(cairn.__file__).parent
OWN = {file.name for file in FOLDER.glob("lib*.so*")}  # Shared libraries that travel in the package.
SYSTEM = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}


def needed(file: Path) -> set[str]:
    text = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def loaded(library: str) -> set[str]:
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if library in line}


def test_it_needs_nothing_but_the_c_and_cpp_runtime() -> None:
    for file in (next(FOLDER.glob("_core*.so")), COMMAND):
        others = {name for name in needed(file) - SYSTEM if not name.startswith("ld-linux")}
        assert others == OWN, file
    for name in OWN:
        assert needed(FOLDER / name) <= SYSTEM


def test_package_command_and_sources_are_of_one_version() -> None:
    root = Path(__file__).parents[2]
    of_cmake = re.search(r"project\(cairn VERSION (\S+)", (root / "CMakeLists.txt").read_text())
    of_pip = re.search(r'^version = "(\S+)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    of_command = subprocess.run([COMMAND, "--version"], check=True, capture_output=True, text=True).stdout
    assert of_cmake and of_pip
    assert cairn.__version__ == of_cmake[1] == of_pip[1]
    assert of_command == f"cairn {cairn.__version__}\n"


def test_its_libraries_are_its_own_also_where_the_system_has_them() -> None:
    assert "libisal.so.2" in OWN
    for name in OWN:
        assert loaded(name) == {str((FOLDER / name).resolve())}


def test_it_works_without_torch_and_its_command_reads_what_it_wrote(tmp_path: Path) -> None:
    script = """if True:
        import sys
        sys.modules["torch"] = None
        import cairn, numpy
        with cairn.Checkpointer(sys.argv[1], host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
            checkpointer.save(7, {"weights": numpy.arange(10.0), "epoch": 3}).wait()
            loaded = checkpointer.load()
            assert loaded["epoch"] == 3 and (loaded["weights"] == numpy.arange(10.0)).all()
            target = {"weights": numpy.zeros(10), "epoch": 0}
            assert checkpointer.restore(target)["epoch"] == 3 and target["weights"][9] == 9
        others = ("cairn._dcp", "cairn._huggingface", "cairn._path_store")  # What dcp, huggingface and lightning need.
        assert not [name for name in sys.modules if name.startswith(others)]
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, tmp_path / "run"], check=True, env=environment)

    listed = subprocess.run([COMMAND, "ls", tmp_path / "run"], check=True, capture_output=True, text=True).stdout
    verified = subprocess.run([COMMAND, "verify", tmp_path / "run"], check=False, capture_output=True, text=True)

    assert "7" in listed
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        ("None", "import of torch halted"),
        ("types.SimpleNamespace(__version__='2.6.0+cu124')", r"found 2\.6\.0\+cu124"),
        ("types.SimpleNamespace(__version__='1.13.1')", r"found 1\.13\.1"),
    ],
)
def test_dcp_tells_which_torch_it_needs(torch: str, reason: str) -> None:
    script = f"import sys, types; sys.modules['torch'] = {torch}; import cairn.dcp"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    assert ended.returncode == 1
    assert re.search(f"ImportError: cairn.dcp needs torch 2.7 or newer: {reason}", ended.stderr), ended.stderr


def test_dcp_is_there_with_every_torch_from_that_on() -> None:
    """The tests of cairn.dcp are skipped where it is not."""
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7):
        import cairn.dcp

        assert cairn.dcp.StorageWriter
    else:
        with pytest.raises(ImportError, match=f"needs torch 2.7 or newer: found {re.escape(torch.__version__)}"):
            import cairn.dcp


def test_help_says_something_about_every_public_name() -> None:
    silent = []
    for name in cairn.__all__:
        value = getattr(cairn, name)
        members = inspect.getmembers(value) if inspect.isclass(value) else []
        own = [(f"{name}.{member}", found) for member, found in members if not member.startswith("_")]
        for where, found in [(name, value), *own]:
            if (callable(found) or isinstance(found, property)) and not inspect.getdoc(found):
                silent.append(where)
    assert silent == []
    shown = pydoc.plain(pydoc.render_doc(cairn))
    assert [name for name in cairn.__all__ if name not in shown] == []


# C++'s options by Python's names: there sizes are text, too, and so have no unit.
PYTHON_NAMES = {
    "host_memory_bytes": "host_memory", "chunk_bytes": "chunk", "staging_bytes": "staging", "memory_root": "memory",
}  # fmt: skip
# slowdown, mtbf and restart_time; logging; the command that is installed with the package.
IN_ANOTHER_FORM = {"steering", "on_event", "mirror_command"}
OF_PYTHON = {
    "exist_ok", "keep_best", "best_metric", "best_mode", "unfenced_writes", "replicated", "per_rank", "compare_replicas",
    "interval", "slowdown", "mtbf", "restart_time", "metrics_port", "on_failure",
}  # fmt: skip


def test_the_options_are_those_of_cpp() -> None:
    header = (Path(__file__).parents[2] / "include/cairn/options.h").read_text()
    fields = header.partition("struct Options {")[2].partition("\n};")[0]
    of_cpp = {PYTHON_NAMES.get(name, name) for name in re.findall(r"^  [\w:<>]+ (\w+) = ", fields, re.MULTILINE)}
    options = set(inspect.signature(cairn.Checkpointer).parameters)

    assert of_cpp - IN_ANOTHER_FORM == options - OF_PYTHON


def test_every_option_and_every_number_is_documented(make: Callable[..., cairn.Checkpointer]) -> None:
    options = [*inspect.signature(cairn.Checkpointer).parameters]
    assert sorted(re.findall(r"^  (\w+) +\S", str(inspect.getdoc(cairn.Checkpointer)), re.MULTILINE)) == sorted(options)

    checkpointer = make()
    assert checkpointer.stats["since_durable"] is None
    begin = time.monotonic()
    save = checkpointer.save(1, {"n": 1})
    save.wait()
    for stats, of in ((checkpointer.stats, cairn.Checkpointer.stats), (save.stats, cairn.Save.stats)):
        assert [name for name in stats if not re.search(rf"\b{name}\b", str(of.__doc__))] == []
    first, second = (checkpointer.stats["since_durable"] for _ in range(2))
    assert 0 <= first < second < time.monotonic() - begin
