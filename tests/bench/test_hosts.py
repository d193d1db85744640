"""A job on two hosts, which are network namespaces: started on each by the line of docs/coming-from.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build/release/bin"))
LINES = re.findall(r"^.*\bIP1\b.*$", (ROOT / "docs/coming-from.md").read_text(), re.MULTILINE)
(RECONFIGURE,) = (line for line in LINES if line.startswith("NNODES=2 NODE_RANK=0 "))
(FIGURE,) = (line for line in LINES if line.startswith("torchrun "))
HOSTS = [f"cairn-{os.getpid()}-{host}" for host in range(2)]
LINK, ADDRESS = "cairn0", "10.77.47.{}"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    made = []
    try:
        for host in HOSTS:
            ip(f"netns add {host}")
            made.append(host)
        ip(f"link add {LINK} netns {HOSTS[0]} type veth peer name {LINK} netns {HOSTS[1]}")
        for number, host in enumerate(HOSTS):
            ip(f"-n {host} addr add {ADDRESS.format(number + 1)}/24 dev {LINK}")
            for link in (LINK, "lo"):
                ip(f"-n {host} link set {link} up")
    except subprocess.CalledProcessError as error:
        for host in made:
            ip(f"netns del {host}")
        pytest.skip(f"cannot make network namespaces: {error.stderr.decode()}")
    yield
    for host in HOSTS:
        ip(f"netns del {host}")


def start(host: int, line: str, folder: Path) -> subprocess.Popen[str]:
    """The line on one of the hosts, which have one disk."""
    line = (
        line.replace("IP1", ADDRESS.format(1))
        .replace("NODE_RANK=0", f"NODE_RANK={host}")
        .replace("--node-rank 0", f"--node-rank {host}")
    )
    line = line.replace("/mnt/shared", str(folder)).replace("python -m", f"{shlex.quote(sys.executable)} -m")
    given = {"GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), *filter(None, sys.path)])}  # fmt: skip
    return subprocess.Popen(["ip", "netns", "exec", HOSTS[host], "sh", "-c", f"exec env {line}"], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | given)  # fmt: skip


def on_both(folder: Path, *lines: str) -> list[tuple[str, str]]:
    """What each host said, once both have ended well."""
    nodes = [start(host, line, folder) for host, line in enumerate(lines)]
    try:
        said = [node.communicate(timeout=400) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    return said


def test_two_hosts_train_and_go_on_with_another_layout(hosts: None, tmp_path: Path) -> None:
    small = RECONFIGURE.replace("tiny 1 8", "tiny 1 4").replace("NUM_GPUS=2", "NUM_GPUS=1") + " --host-memory 32MiB"
    first = small.replace("--pp 2 --tp 2 --dp 1 --max-steps 10", "--pp 2 --tp 1 --dp 1 --max-steps 2")
    next_one = small.replace("--pp 2 --tp 2 --dp 1 --max-steps 10", "--pp 1 --tp 1 --dp 2 --max-steps 3")
    assert small != RECONFIGURE and first != small != next_one

    begun = "".join(out for out, _ in on_both(tmp_path, first, first))
    went_on = "".join(out for out, _ in on_both(tmp_path, next_one, next_one))

    assert "step 1 loss" in begun and "step 2 durable" in begun
    assert "step 2 restored" in went_on and "step 3 durable" in went_on


def test_a_host_that_does_not_answer_is_named_before_anything_starts(hosts: None, tmp_path: Path) -> None:
    alone = start(1, RECONFIGURE + " --timeout 0.5", tmp_path)
    _, said = alone.communicate(timeout=60)

    assert alone.returncode == 2 and list(tmp_path.iterdir()) == []
    assert "MASTER_ADDR: 10.77.47.1 does not answer at port 29500" in " ".join(said.split())


def pipeline(rank: int, strategy: str, more: str = "") -> str:
    """As torchrun starts it."""
    job = f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=IP1 MASTER_PORT=29500"
    return (f"{job} {BIN}/bench_pipeline --network hosts --strategy {strategy} --dir /mnt/shared --scale 0.000244140625 "
            f"--dilation 40 --every 2 --iterations 6 {more}")  # fmt: skip


needs_pipeline = pytest.mark.skipif(not (BIN / "bench_pipeline").exists(), reason="no bench_pipeline")


@needs_pipeline
@pytest.mark.parametrize("strategy", ["cairn", "gemini", "sync"])
def test_both_hosts_print_the_row_of_a_pipeline(hosts: None, tmp_path: Path, strategy: str) -> None:
    first, second = on_both(tmp_path, pipeline(0, strategy), pipeline(1, strategy))

    assert first[0] == second[0] and f"\n{strategy},opt-2.7b," in first[0]
    assert "processes of this machine" not in first[0]
    assert list(tmp_path.iterdir()) == []


@needs_pipeline
def test_both_hosts_say_that_their_commands_or_disks_differ(hosts: None, tmp_path: Path) -> None:
    def refused(*lines: str) -> list[str]:
        nodes = [start(host, line, tmp_path / str(host)) for host, line in enumerate(lines)]
        said = [node.communicate(timeout=100)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [2, 2], said
        return said

    for host in range(2):
        (tmp_path / str(host)).mkdir()
    # Each host has a folder of its own under the same name.
    apart = f"unshare -m sh -c 'mount --bind {tmp_path}/1 {tmp_path}/0 && exec env {{}}'".format
    line = pipeline(1, "cairn").replace("/mnt/shared", f"{tmp_path}/0")

    for said in refused(pipeline(0, "cairn"), pipeline(1, "cairn", "--in-flight 3")):
        assert "expected the same command on both hosts, found here --strategy cairn " in said
    for said in refused(pipeline(0, "cairn"), apart(line)):
        assert (
            "expected storage that both hosts share, because cairn's ranks write one checkpoint; rank 0 made " in said
        )


@needs_pipeline
def test_figure_8e_runs_on_two_hosts(hosts: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = "--strategies cairn --intervals 1 --repetitions 1 --scale 0.0005 --dilation 8"
    line = FIGURE.replace("torchrun", "python -m torch.distributed.run", 1)
    line = line.replace("scripts/figures", "python -m cairn_bench figure")

    on_both(tmp_path, *(f"{line} {small} --output {tmp_path}/{host}" for host in range(2)))

    first, second = ((tmp_path / f"{host}.csv").read_text().splitlines() for host in range(2))
    assert [row for row in first if row[0] != "#"] == [row for row in second if row[0] != "#"]
    assert first[-1].startswith("0,1,cairn,opt-2.7b,")
