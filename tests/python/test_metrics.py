"""What others see of a job: a scrape by prometheus_client, the file for node_exporter, the alerts and the dashboard of the
docs, the fields of events, and what a job does when saves fail, on a disk that really has no room."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cairn
import numpy
import pytest
from cairn._metrics import port_of_rank
from jobs import ENVIRONMENT, until
from prometheus_client.parser import text_string_to_metric_families

Make = Callable[..., cairn.Checkpointer]
DOCS = Path(__file__).parents[2] / "docs"
PROMTOOL = shutil.which("promtool")


def samples(text: str) -> dict[str, float]:
    """By name, and the value's own label: "cairn_saves_total durable"."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family
        for one in family.samples:
            assert {"root", "rank", "node"} <= set(one.labels), one
            own = [value for name, value in sorted(one.labels.items()) if name not in ("root", "rank", "node")]
            found[" ".join([one.name, *own])] = one.value
    return found


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@contextmanager
def no_room() -> Iterator[None]:
    """No file may have more than 1 MiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


BIG = {"w": numpy.ones(1 << 20)}  # 8 MiB.

# A rank of a job that does what it is told, line by line.
RANK = """
import os, pathlib, resource, sys
import cairn, torch
torch.distributed.init_process_group("gloo")
folder, rank = pathlib.Path(sys.argv[1]), torch.distributed.get_rank()
commands, answers = open(folder / f"commands{rank}"), open(folder / f"answers{rank}", "w")
tree = {"w": torch.ones(300_000) + rank}
checkpointer = cairn.Checkpointer(folder / "run", group=torch.distributed.group.WORLD, host_memory="8MiB", chunk="1MiB",
                                  queue_depth=2, keep_last=2, metrics_port=0, metrics_file=folder / "job.prom",
                                  mirrors=[cairn.Mirror(folder / "mirror")])
def save(step):
    saved = checkpointer.save(step, tree)
    checkpointer.fence()
    return saved
def no_room(step):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    torch.distributed.barrier()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        save(step).wait()
    except cairn.NoSpace:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
for line in commands:
    exec(line)
    print(checkpointer.metrics_port, file=answers, flush=True)
"""


class Job:
    """Two ranks under torchrun."""

    def __init__(self, folder: Path) -> None:
        (folder / "rank.py").write_text(RANK)
        for name in [f"{what}{rank}" for what in ("commands", "answers") for rank in (0, 1)]:
            os.mkfifo(folder / name)
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [*run, "--master-port", str(port), folder / "rank.py", folder],
            env=ENVIRONMENT | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"},
        )
        # Both ways, so that nobody waits here for a job that does not begin.
        self._commands, self._answers = (
            [os.open(folder / f"{what}{rank}", os.O_RDWR) for rank in (0, 1)] for what in ("commands", "answers")
        )

    def tell(self, code: str) -> list[dict[str, float]]:
        """Runs it on both ranks; what each of them is scraped to then."""
        for commands in self._commands:
            os.write(commands, f"{code}\n".encode())
        self.texts = [scrape(self._port(answers)) for answers in self._answers]
        return [samples(text) for text in self.texts]

    @staticmethod
    def _port(answers: int) -> int:
        assert select.select([answers], [], [], 120)[0], "no answer"
        return int(os.read(answers, 100))

    def end(self) -> int:
        """Its exit code."""
        for pipe in self._commands:
            os.write(pipe, b"checkpointer.close(); raise SystemExit\n")
        return self.process.wait(120)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    pytest.importorskip("torch")
    job = Job(tmp_path)
    yield job
    if job.process.poll() is None:
        job.process.terminate()  # It ends its ranks.
        job.process.wait()
    for pipe in [*job._commands, *job._answers]:
        os.close(pipe)


def block(language: str) -> str:
    """The code of that language in the docs."""
    (found,) = re.findall(
        rf"^```{language}\n(.*?)^```$", (DOCS / "monitoring.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


# What no test moves here: constants, and what only a disk that hangs or interrupts does. Those are C++'s tests.
STILL = {"cairn_info", "cairn_opened_timestamp_seconds", "cairn_pool_bytes", "cairn_pool_limit_bytes", "cairn_disk_hangs",
         "cairn_mirror_behind", "cairn_mirror_failures_total", "cairn_retries_total", "cairn_buffered_saves_total", "cairn_pool_used_bytes", "cairn_disk_free_bytes"}  # fmt: skip


def test_a_scrape_of_a_torchrun_job_shows_each_metric_move(job: Job, tmp_path: Path) -> None:
    states = [job.tell("pass")]
    where = "folder / 'mirror' if rank == 0 else None"
    states.append(job.tell(f"for step in (1, 2, 3, 4): save(step).wait(where={where})"))
    states.append(
        job.tell("checkpointer.drain(); pause = checkpointer.pause_copies(60); held = checkpointer.save(5, tree)")
    )
    assert [rank["cairn_saves_in_flight"] for rank in states[-1]] == [1, 1]
    states.append(job.tell("pause.end(); held.wait(); checkpointer.drain()"))
    states.append(job.tell("no_room(6)"))
    for rank in states[-1]:
        assert rank["cairn_save_failures_total NoSpace"] == rank["cairn_failures_in_a_row"] == 1
    shard = next((tmp_path / "run" / f"step-{5:020}").glob("shard-00001*"))
    shard.write_bytes(shard.read_bytes()[:-8] + b"damaged!")
    states.append(job.tell("checkpointer.restore(tree, fall_back=True)"))

    for rank in (0, 1):
        seen = [state[rank] for state in states]
        names = {name.split()[0] for name in seen[-1]}
        moved = {name.split()[0] for name in seen[-1] if len({state.get(name) for state in seen}) > 1}
        assert names - moved <= STILL, sorted(names - moved - STILL)
        durable, failed = (seen[-1][f"cairn_saves_total {outcome}"] for outcome in ("durable", "failed"))
        assert (durable, failed) == (5, 1)
        of_group = {"cairn_newest_step", "cairn_newest_age_seconds", "cairn_checkpoints_removed_total",
                    "cairn_mirror_newest_step", "cairn_mirror_behind", "cairn_mirror_failures_total"}  # fmt: skip
        assert of_group <= names if rank == 0 else not of_group & names
    assert states[-1][0]["cairn_newest_step"] == 4  # The restore has passed over 5, which is damaged.
    assert states[-1][0]["cairn_checkpoints_removed_total"] == 3

    # The file has the same metrics, and the docs name no others.
    until(lambda: "cairn_restores_total" in (tmp_path / "job-rank1.prom").read_text())
    names = {name.split()[0] for rank in states[-1] for name in rank} | {"cairn_save_kept_seconds"}  # Not of a group.
    assert {name.split()[0] for name in samples((tmp_path / "job-rank0.prom").read_text())} <= names
    for file in ("monitoring/alerts.yml", "monitoring/dashboard.json", "monitoring.md"):
        named = set(re.findall(r"\bcairn_[a-z_]+\b", (DOCS / file).read_text())) - LABELS
        assert {name for name in named if name not in names and f"{name}_count" not in names} == set(), file
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
    assert families <= set(re.findall(r"\bcairn_[a-z_]+\b", (DOCS / "monitoring.md").read_text()))
    if PROMTOOL:
        for text in job.texts:
            checked = subprocess.run(
                [PROMTOOL, "check", "metrics"], input=text, text=True, capture_output=True, check=False
            )
            assert checked.returncode == 0, checked.stderr + checked.stdout
    assert job.end() == 0
    assert not (tmp_path / "job-rank0.prom").exists()


# In the docs, and no metric: fields of the log's records.
LABELS = {"cairn_step", "cairn_rank", "cairn_phase", "cairn_seconds", "cairn_path", "cairn_code", "cairn_event",
          "cairn_severity"}  # fmt: skip


def test_the_alerts_fire_and_the_dashboard_is_whole(tmp_path: Path) -> None:
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text())
    assert dashboard["title"] == "Cairn"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) and all(panel["targets"] for panel in dashboard["panels"])
    if not PROMTOOL:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for file in (DOCS / "monitoring/alerts.yml", Path(__file__).parent / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "prometheus.yml").write_text(f"rule_files: [alerts.yml]\n{block('yaml')}")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([PROMTOOL, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_port_belongs_to_one_and_is_free_again(make: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = make(metrics_port=0)
    port = checkpointer.metrics_port
    assert port is not None
    assert samples(scrape(port)).keys() == samples(checkpointer.metrics_text()).keys()
    with pytest.raises(cairn.FailedPrecondition, match=f"metrics_port: port {port} cannot be listened at"):
        cairn.Checkpointer(f"{root}2", host_memory="8MiB", metrics_port=port)
    assert not Path(f"{root}2").exists()
    with socket.create_connection(("127.0.0.1", port)):  # A client that says nothing.
        assert make(metrics_port=port).metrics_port == port  # After a close.
    with pytest.raises(cairn.InvalidArgument, match="metrics_port: expected a whole number"):
        cairn.Checkpointer(f"{root}2", metrics_port=-1)
    with pytest.raises(
        cairn.InvalidArgument, match=r'metrics_file: expected a path that ends with NAME.prom, found ".*job"'
    ):
        cairn.Checkpointer(f"{root}2", host_memory="8MiB", metrics_file="job")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(cairn.Unsupported, match="metrics_port: needs prometheus_client"):
            cairn.Checkpointer(f"{root}2", metrics_port=0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [port_of_rank(9000, rank=11, world=world) for world in (1, 16)] == [9000, 9003]
    monkeypatch.delenv("LOCAL_RANK")
    assert port_of_rank(9000, rank=11, world=16) == 9011


def test_a_record_of_the_log_has_an_events_fields(make: Make, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "cairn")
    checkpointer = make(keep_last=1, stop_after_failures=5)
    for step in (1, 2):
        checkpointer.save(step, BIG).wait()
    with no_room(), pytest.raises(cairn.NoSpace):
        checkpointer.save(3, BIG).wait()
    checkpointer.drain()

    def records(event: str) -> list[Any]:
        return [record for record in caplog.records if getattr(record, "cairn_event", "") == event]

    durable, failed, removed = (records(event)[0] for event in ("durable", "failed", "removed"))
    assert (durable.cairn_step, durable.cairn_rank, durable.cairn_phase, durable.cairn_code) == (1, 0, "save", None)
    assert durable.cairn_seconds > 0 and durable.cairn_path.endswith(f"step-{1:020}")
    assert durable.getMessage() == "step 1: durable" and durable.levelno == logging.DEBUG
    assert (failed.cairn_step, failed.cairn_severity, failed.cairn_code) == (3, "error", "NoSpace")
    assert failed.cairn_path == str(root) and failed.cairn_seconds > 0
    assert (removed.cairn_step, removed.cairn_phase) == (1, "retention")
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102
    written = json.loads(names["Fields"]().format(failed))
    assert written["cairn_code"] == "NoSpace" and written["message"].startswith("step 3: ")


def test_training_stops_after_so_many_failures_in_a_row(make: Make) -> None:
    told: list[tuple[int, str]] = []
    heard = threading.Event()

    def on_failure(step: int, error: cairn.Error) -> None:
        told.append((step, type(error).__name__))
        if len(told) == 3:
            heard.set()

    checkpointer = make(stop_after_failures=2, on_failure=on_failure)
    for step in range(1, 5):
        if step in (2, 4):
            with no_room():
                save = checkpointer.save(step, BIG)
                until(save.done)
        else:
            checkpointer.save(step, BIG).wait()
        checkpointer.check()
    assert checkpointer.stats["failures_in_a_row"] == 1
    with no_room():
        until(checkpointer.save(5, BIG).done)
    with pytest.raises(cairn.NoSpace, match="2 saves in a row have failed, the newest: .*RLIMIT_FSIZE"):
        checkpointer.check()
    assert heard.wait(60)
    assert sorted(told) == [(2, "NoSpace"), (4, "NoSpace"), (5, "NoSpace")]
    checkpointer.save(6, BIG).wait()
    checkpointer.check()
    assert checkpointer.stats["newest_step"] == 6 and checkpointer.stats["disk_free_bytes"] > 0
    checkpointer.close()


def test_saves_that_their_call_refuses_count(make: Make) -> None:
    told: list[int] = []
    checkpointer = make(stop_after_failures=2, on_failure=lambda step, _error: told.append(step))
    checkpointer.save(5, BIG).wait()
    with pytest.raises(cairn.AlreadyExists):
        checkpointer.save(5, BIG)
    with pytest.raises(cairn.InvalidArgument):
        checkpointer.save(6, {"w": object()})
    checkpointer.check()  # Step 5 is saved.
    with pytest.raises(cairn.FailedPrecondition):
        checkpointer.save(4, BIG)
    with pytest.raises(cairn.FailedPrecondition, match="2 saves in a row have failed, the newest: step 4 is below"):
        checkpointer.check()
    counted = samples(checkpointer.metrics_text())
    assert counted["cairn_save_failures_total InvalidArgument"] == 1
    assert counted["cairn_save_failures_total FailedPrecondition"] == 1
    assert (counted["cairn_saves_total failed"], counted["cairn_failures_in_a_row"]) == (3, 2)
    checkpointer.save(6, BIG).wait()
    checkpointer.check()
    checkpointer.close()
    assert told == []  # Whoever called save has heard.


def restores(checkpointer: cairn.Checkpointer) -> tuple[float, float]:
    counted = samples(checkpointer.metrics_text())
    return counted["cairn_restores_total done"], counted["cairn_restores_total failed"]


def test_a_restore_or_a_load_counts_once(make: Make) -> None:
    checkpointer = make()
    with pytest.raises(cairn.NotFound):
        checkpointer.restore({"w": numpy.ones(4)})
    assert restores(checkpointer) == (0, 1)
    checkpointer.save(1, {"w": numpy.ones(4), "v": numpy.ones(4)}).wait()
    refused: list[Callable[[], Any]] = [
        lambda: checkpointer.restore({"w": numpy.ones(4)}, cast="no such"),
        lambda: checkpointer.restore({"w": numpy.ones(5), "v": numpy.ones(4)}),
        lambda: checkpointer.load(step=-1),
        lambda: checkpointer.load(names="no such"),
        lambda: checkpointer.load(2),
    ]
    for failed, call in enumerate(refused, 2):
        with pytest.raises((cairn.InvalidArgument, cairn.NotFound)):
            call()
        assert restores(checkpointer) == (0, failed), failed
    checkpointer.restore({"w": numpy.zeros(4), "v": numpy.zeros(4)})
    checkpointer.load()
    assert restores(checkpointer) == (2, 6)
    lazy = checkpointer.load(lazy=True)
    lazy["w"].load()
    assert restores(checkpointer) == (4, 6)
    assert checkpointer.latest(fall_back=True) == 1 and restores(checkpointer) == (4, 6)


def test_a_load_through_dcp_counts_once(make: Make, root: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("cairn.dcp")
    from torch.distributed.checkpoint import state_dict_loader

    checkpointer = make()
    dcp.save({"w": torch.ones(4), "v": torch.ones(4)}, storage_writer=dcp.StorageWriter(checkpointer, 1), no_dist=True)

    def reader(step: int | None = None, **options: Any) -> Any:
        return dcp.StorageReader(checkpointer, step, **options)

    whole, wrong = {"w": torch.zeros(4), "v": torch.zeros(4)}, {"w": torch.zeros(5)}
    lossy = {"w": torch.zeros(4, dtype=torch.int8)}
    refused: list[Callable[[], Any]] = [
        lambda: dcp.load(dict(whole), storage_reader=reader(2), no_dist=True),
        lambda: dcp.load(dict(wrong), storage_reader=reader(), no_dist=True),
        lambda: dcp.load(dict(lossy), storage_reader=reader(), no_dist=True),
        lambda: dcp.load(dict(whole), storage_reader=reader(), strict=False, no_dist=True),
        lambda: state_dict_loader.load(dict(lossy), storage_reader=reader(), planner=dcp.LoadPlanner(), no_dist=True),
    ]
    for failed, call in enumerate(refused, 1):
        with pytest.raises(BaseException):  # noqa: B017 (DCP's own call raises CheckpointException)
            call()
        assert restores(checkpointer) == (0, failed), failed
    dcp.load(whole, storage_reader=reader(), no_dist=True)
    assert restores(checkpointer) == (1, 5)
    state_dict_loader.load(whole, storage_reader=reader(), planner=dcp.LoadPlanner(), no_dist=True)
    assert restores(checkpointer) == (2, 5)

    by_path = dcp.checkpointer_for(f"{root}2/step-1", no_dist=True, host_memory="32MiB")
    for state, step in ((whole, 7), (wrong, 1)):
        dcp.save(dict(whole), checkpoint_id=f"{root}2/step-1", no_dist=True)
        with pytest.raises(cairn.Error):
            dcp.load(dict(state), checkpoint_id=f"{root}2/step-{step}", no_dist=True)
    assert restores(by_path) == (0, 2)
    by_path.close()


# There is room for the checkpoint that is kept and one more.
FULL = """
import sys, cairn, numpy
with cairn.Checkpointer(sys.argv[1], host_memory="32MiB", chunk="1MiB", queue_depth=2, keep_last=1, recycle=False) as run:
    for step in range(1, 13):
        run.save(step, {"w": numpy.ones(1 << 20)})
    run.drain()
    assert run.steps() == [12] and run.stats["saves_durable"] == 12, run.stats
"""


def test_saves_on_a_full_disk_wait_for_what_retention_removes(tmp_path: Path) -> None:
    inside = ["unshare", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=20m none {tmp_path}"
    tried = subprocess.run([*inside, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mounting a tmpfs: {tried.stderr}")
    program = f'{mount} && exec "$0" -c "$1" {tmp_path}/run'
    subprocess.run([*inside, program, sys.executable, FULL], check=True, env=ENVIRONMENT)
