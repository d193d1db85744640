"""The wheel of scripts/wheel, installed where there is a Python and nothing else to compile or to link with."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_root import BareRoot

ROOT = Path(__file__).parents[2]
SAVE_AND_RESTORE = """if True:
    import sys
    import cairn, numpy
    with cairn.Checkpointer("/run", host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(7, {"weights": numpy.arange(1e6), "epoch": 3}).wait()
    target = {"weights": numpy.zeros(1000000), "epoch": 0}
    with cairn.Checkpointer("/run", read_only=True) as checkpointer:
        assert checkpointer.restore(target)["epoch"] == 3 and (target["weights"] == numpy.arange(1e6)).all()
    assert "torch" not in sys.modules
    print(cairn.__version__, cairn.__file__)
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = list((ROOT / "build/wheel").glob("cairn_checkpoint-*.whl"))
    assert len(found) == 1, f"expected one wheel in build/wheel, found {found}; scripts/wheel builds it"
    return found[0]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[BareRoot]:
    root = tmp_path_factory.mktemp("bare")
    namespaces = [] if os.geteuid() == 0 else ["--map-root-user"]
    allowed = subprocess.run(["unshare", "--mount", *namespaces, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"a root for chroot needs a mount namespace: {allowed.stderr}")
    bare = BareRoot(root)
    names = bare.names()
    assert not names & {"gcc", "cc", "g++", "ld", "sh", "cmake", "stdio.h"}
    assert not [name for name in names if name.startswith(("liburing", "libisal", "libfmt", "libcuda", "libtorch"))]
    installed = bare.run("python", "-m", "pip", "install", "--no-index", bare.add(wheel))
    assert installed.returncode == 0, installed.stdout + installed.stderr
    yield bare


def test_it_names_its_glibc_and_is_small(wheel: Path) -> None:
    assert "-manylinux_2_" in wheel.name
    assert wheel.stat().st_size < 8_000_000  # Debug information would be three times that.


def test_it_has_the_licences_of_what_is_in_it(wheel: Path) -> None:
    licences = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "dist-info/licenses/" in name}

    assert licences >= {"LICENSE", "liburing-dev", "libisal-dev", "libfmt-dev", "nlohmann-json3-dev", "pybind11"}


def test_it_saves_restores_and_verifies_in_a_bare_root(bare: BareRoot) -> None:
    ran = bare.run("python", "-c", SAVE_AND_RESTORE)

    assert ran.returncode == 0, ran.stderr
    version, file = ran.stdout.split()
    assert bare.root / file[1:] == bare.packages / "cairn/__init__.py"
    assert bare.run("cairn", "--version").stdout == f"cairn {version}\n"
    verified = bare.run("cairn", "verify", "/run")
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout == "/run/step-00000000000000000007: ok\n"
    times = ["--state-bytes", "1MB", "--iteration-time", "1s", "--slowdown", "1%", "--mtbf", "24h"]
    gpu = bare.run("cairn", "tune", "/run", *times, "--device", "cuda")
    assert gpu.returncode != 0 and "cannot load libcuda.so.1" in gpu.stderr  # It serves CUDA where there is a driver.
    share = bare.root / "env/share"
    assert (share / "bash-completion/completions/cairn").exists()
    assert (share / "zsh/site-functions/_cairn").exists()
