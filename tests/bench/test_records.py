"""A pipeline on record: when each instruction ran, what Cairn did meanwhile, and stages of chosen layers; real processes."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest

pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")

import itertools

import torch.distributed as dist
from cairn_bench.reconfigure import run
from cairn_bench.reconfigure import train as program
from cairn_bench.reconfigure.jobs import Failed, Job
from cairn_bench.reconfigure.layout import UNIFORM, BadLayout, Layout, partition
from cairn_bench.reconfigure.sizes import sizes_of
from cairn_bench.reconfigure.train import Settings, train

ROOT = Path(__file__).parents[2]
CAIRN = ROOT / "build/release/bin/cairn"
MICRO_BATCHES = 4
# Rank 0 is stage 0, of layer 0, rank 2 stage 1.
SETTINGS = Settings("", Layout(2, 1, 2), 3, save_every=1, digests=True, host_memory="32MiB", timeout=60,
                    partition_method="custom:0,3,7", num_prof_steps=2)  # fmt: skip
ORDER = {0: "F0 F1 B0 F2 B1 F3 B2 B3", 1: "F0 B0 F1 B1 F2 B2 F3 B3"}
Row = dict[str, Any]


@dataclasses.dataclass
class Recorded:
    folder: Path
    job: Job
    rows: list[list[Row]]  # Of each rank.

    def of(self, rank: int, *instructions: str, step: int = 3) -> list[Row]:
        return [row for row in self.rows[rank] if row["instruction"] in instructions and row["step"] == step]


def rows_of(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [
            row
            | {name: float(row[name]) for name in ("start", "end")}
            | {name: int(row[name]) if row[name] else None for name in ("step", "rank", "stage", "micro_batch")}
            for row in csv.DictReader(file)
        ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("records")
    settings = dataclasses.replace(SETTINGS, root=str(folder / "run"), export_timing_csv=str(folder / "out"))
    with Job(4, train, settings) as job:
        job.finish(180)
    return Recorded(folder, job, [rows_of(folder / "out" / f"instructions-{rank}.csv") for rank in range(4)])


def test_each_recorded_step_has_every_instruction_once_in_the_order_of_1f1b(recorded: Recorded) -> None:
    for rank, rows in enumerate(recorded.rows):
        stage = rank // 2
        assert {(row["rank"], row["stage"]) for row in rows} == {(rank, stage)}
        for step in (2, 3):
            computed = recorded.of(rank, "forward", "backward", step=step)
            names = [f"{row['instruction'][0].upper()}{row['micro_batch']}" for row in computed]
            assert " ".join(names) == ORDER[stage]
            messages = (("send_activation", "recv_gradient"), ("recv_activation", "send_gradient"))[stage]
            for name in messages:
                assert [row["micro_batch"] for row in recorded.of(rank, name, step=step)] == [*range(MICRO_BATCHES)]
            assert len(recorded.of(rank, "all_reduce", "optimizer", step=step)) == 2


def test_no_two_computations_of_a_rank_overlap(recorded: Recorded) -> None:
    for rank in range(4):
        computed = recorded.of(rank, "forward", "backward", "all_reduce", "optimizer")
        assert len(computed) == 2 * MICRO_BATCHES + 2
        for before, after in itertools.pairwise(computed):
            assert before["start"] < before["end"] <= after["start"]


@pytest.mark.parametrize(
    ("sender", "sent", "receiver", "received", "used"),
    [(0, "send_activation", 2, "recv_activation", "forward"), (3, "send_gradient", 1, "recv_gradient", "backward")],
)
def test_a_message_arrives_after_it_was_sent_and_before_it_is_used(
    recorded: Recorded, sender: int, sent: str, receiver: int, received: str, used: str
) -> None:
    for at in range(MICRO_BATCHES):
        sends, receives, uses = (
            next(row for row in recorded.of(rank, name) if row["micro_batch"] == at)
            for rank, name in ((sender, sent), (receiver, received), (receiver, used))
        )
        assert sends["start"] < receives["end"] <= uses["start"]


def test_capture_and_write_of_each_save_are_on_the_same_clock(recorded: Recorded) -> None:
    writers = []
    for rank, rows in enumerate(recorded.rows):
        (save,), captures, writes = (recorded.of(rank, name, step=2) for name in ("save", "capture", "write"))
        (saving,) = (told["at"] for told in recorded.job.ranks[rank].all("saving") if told["step"] == 2)
        assert saving < save["start"] < saving + 60
        for row in [*captures, *writes]:
            assert save["start"] <= row["start"] < row["end"] <= save["end"]
        writers += [rank // 2] * bool(captures and writes)
        assert rows == sorted(rows, key=lambda row: (row["start"], row["end"]))
    assert {*writers} == {0, 1}  # What is identical on two ranks is written by one.


def test_energy_has_a_sample_around_each_step_or_says_why_not(recorded: Recorded) -> None:
    with (recorded.folder / "out/time-energy-1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert list(rows[0]) == ["time", "energy_j", "source"] and len(rows) == 2 * 2
    times = [float(row["time"]) for row in rows]
    first = recorded.of(1, "forward", step=2)[0]
    assert times == sorted(times) and times[0] < first["start"] < times[1]
    for row in rows:  # Whatever this machine has.
        assert row["source"].startswith("RAPL: package" if row["energy_j"] else "no RAPL: /sys/class/powercap")


def test_perfetto_s_file_has_every_rank_s_instructions_and_cairn_s_trace(recorded: Recorded) -> None:
    events = json.loads((recorded.folder / "out/trace.json").read_text())["traceEvents"]

    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert titles == {rank: f"rank {rank}, stage {rank // 2}" for rank in range(4)}
    for rank, rows in enumerate(recorded.rows):
        shown = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        assert len(shown) == len(rows)
        assert {names[rank, event["tid"]] for event in shown} >= {"instructions", "cairn saves"}
        starts = sorted(event["ts"] / 1e6 for event in shown)
        assert starts == pytest.approx([row["start"] for row in rows], abs=1e-6)
        # What is in one row of the picture does not overlap, Cairn's own rows apart.
        for tid in {event["tid"] for event in shown if not names[rank, event["tid"]].startswith("cairn")}:
            row = sorted((event["ts"], event["ts"] + event["dur"]) for event in shown if event["tid"] == tid)
            assert all(before[1] <= after[0] + 0.01 for before, after in itertools.pairwise(row))


@pytest.mark.skipif(not CAIRN.exists(), reason="no cairn")
def test_cairn_slack_reads_the_records_as_documented(recorded: Recorded) -> None:
    assert "| `cairn slack records/instructions-*.csv` |" in (ROOT / "docs/planning.md").read_text()
    paths = sorted((recorded.folder / "out").glob("instructions-*.csv"))

    ran = subprocess.run([CAIRN, "slack", "--json", *paths], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["steps"] == 2 and len(found["stages"]) == 2 and len(found["send_seconds"]) == 1
    durations = [
        [row["end"] - row["start"] for rank in (0, 1) for row in recorded.of(rank, "forward", step=step)]
        for step in (2, 3)
    ]
    first = found["stages"][0]["instructions"][0]
    at_first = [(durations[0][at] + durations[1][at]) / 2 for at in (0, MICRO_BATCHES)]
    assert first["instruction"] == "forward" and first["micro_batch"] == 0
    assert first["end"] - first["begin"] == pytest.approx(max(at_first), abs=1e-6)


def test_only_the_last_steps_are_recorded_if_asked(recorded: Recorded) -> None:
    for rows in recorded.rows:
        assert {row["step"] for row in rows if row["instruction"] == "forward"} == {2, 3}


def test_stages_have_the_layers_of_the_partition_and_restore_under_another(recorded: Recorded) -> None:
    assert [told["layers"] for told in recorded.job.all("ready")] == [["0"]] * 2 + [["1", "2", "3"]] * 2

    settings = dataclasses.replace(SETTINGS, root=str(recorded.folder / "run"), layout=Layout(3, 1, 1),
                                   partition_method="custom:0,4,5,7")  # fmt: skip
    with Job(3, train, settings) as job:
        job.finish(180)

    assert [told["layers"] for told in job.all("ready")] == [["0", "1"], ["2"], ["3"]]
    (held,), saved = job.all("holds"), recorded.job.all("saves")[-1]
    assert held["step"] == saved["step"] == 3 and held["digests"] == saved["digests"]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("merak", "expected uniform_transformer, or custom: with .* such as custom:0,6,13,20,27"),
        ("custom:", "expected uniform_transformer, or custom:"),
        ("custom:0,x,24", "expected uniform_transformer, or custom:"),
        ("custom:0,-6,12,18,24", "expected uniform_transformer, or custom:"),
        ("custom:0,8,14,24", "expected 5 numbers, because there are 4 stages, found 4"),
        ("custom:1,8,14,20,24", "expected stage 0 to begin at layer 0, found 1"),
        ("custom:0,8,14,20,26", "expected the model's 27 layers at last, embeddings and head included, found 26"),
        ("custom:0,8,8,20,27", "expected stage 1 to have a layer, found 8 to 8"),
        ("custom:0,8,14,13,27", "expected stage 2 to have a layer, found 14 to 13"),
    ],
)
def test_a_partition_that_does_not_fit_says_which_number(method: str, said: str) -> None:
    with pytest.raises(BadLayout, match=f"^partition method '?{method}'?: .*{said}"):
        partition(method, 4, sizes_of("gpt3-xl"))


# The commands of Perseus' paper that name stages, and how many layers Merak makes of a model: gpt3-xl's are the word and the
# position embeddings, 24 layers and the head; t5-3b's the embeddings, 24 encoders, twice 24 halves of decoders and the head.
PUBLISHED = [
    ("bert-huge-uncased", "custom:0,8,14,20,26"), ("bert-huge-uncased", UNIFORM),
    ("bloom-3b", "custom:0,10,18,26,32"), ("bloom-3b", "custom:0,6,10,14,18,22,26,30,32"),
    ("gpt3-xl", "custom:0,8,14,21,27"), ("gpt3-2.7b", UNIFORM),
    ("t5-3b", "custom:0,16,33,53,74"), ("t5-3b", "custom:0,9,16,24,33,43,53,63,74"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "method"), PUBLISHED)
def test_the_published_stages_train_the_whole_model(model: str, method: str) -> None:
    """All stages in this process, at a small width."""
    import torch
    from cairn_bench.reconfigure.data import batch_of
    from cairn_bench.reconfigure.model import Stage, loss

    sizes = sizes_of(f"{model}/{sizes_of(model).of_head // 2}")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    stages = [Stage(sizes, mine) for mine in partition(method, method.count(",") or 8, sizes)]
    *x, targets = batch_of(1, 2, sizes, 1)
    for stage in stages:
        x = stage(*x)
        x = x if isinstance(x, tuple) else (x,)
    error = loss(x[0], targets)
    error.backward()

    named = {name: one for stage in stages for name, one in stage.named_parameters()}
    assert [piece for stage in stages for piece in stage.mine] == sizes.pieces
    assert abs(error.item() / math.log(sizes.vocabulary) - 1) < 0.5
    assert all(one.grad is not None and one.grad.isfinite().all() for one in named.values())
    assert len(named) == len({*named}) == sum(len([*stage.parameters()]) for stage in stages)


def test_uniform_stages_have_as_many_layers() -> None:
    layers = [[*filter(str.isdigit, mine)] for mine in partition(UNIFORM, 4, sizes_of("small"))]
    assert [len(mine) for mine in layers] == [1, 2, 1, 2]
    assert [len(mine) for mine in partition(UNIFORM, 8, sizes_of("gpt3-2.7b"))] == [6, *[4] * 6, 5]
    assert [mine[0] for mine in partition(UNIFORM, 4, sizes_of("t5-3b"))] == ["tokens", "12", "24", "48"]
    for stages, model in ((7, "small"), (3, "t5-3b"), (50, "t5-3b")):
        with pytest.raises(BadLayout, match=f"found {stages}"):
            partition(UNIFORM, stages, sizes_of(model))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("gpt4", "model gpt4: unknown; there are tiny, .* gpt3-xl, "),
        (
            "wide-resnet101_8",
            "a state only, for cairn plan and bench_training; a pipeline trains .* bert, bloom, gpt, t5",
        ),
        ("gpt3-xl/100", "expected a divisor of its heads' size 128, found 100"),
        ("gpt3-xl/x", "expected a divisor of its heads' size 128, found x"),
    ],
)
def test_a_model_that_a_pipeline_cannot_train_says_why(model: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sizes_of(model)


def test_t5_trains_on_four_ranks_as_on_one(tmp_path: Path) -> None:
    """Encoders and decoders cross the stages together, as one message, and tensor-parallel ranks divide both."""
    losses, records = [], tmp_path / "out"
    for layout, method in ((Layout(1, 1, 1), UNIFORM), (Layout(2, 2, 1), "custom:0,13,20")):
        settings = Settings(str(tmp_path / str(layout)), layout, 2, model="t5-small/32", dtype="float64", timeout=60,
                            micro_batch=4, host_memory="32MiB", partition_method=method, export_timing_csv=str(records))  # fmt: skip
        with Job(layout.world, train, settings) as job:
            job.finish(180)
        losses.append([told["loss"] for told in job.all("loss")])

    assert losses[0][1] < losses[0][0] and losses[1] == pytest.approx(losses[0], rel=1e-12)
    sent = [row for row in rows_of(records / "instructions-0.csv") if row["instruction"] == "send_activation"]
    assert [(row["step"], row["micro_batch"]) for row in sent] == [(1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--partition_method", "custom:0,1,5"], "expected the model's 7 layers at last, embeddings and head included"),
        (["--model", "opt-1.3b"], "argument --model: opt-1.3b: a state only"),
        (["--num-prof-steps", "2"], "--num-prof-steps: expected a number of steps, and --export-timing-csv"),
        (["--num_prof_steps", "-2", "--export_timing_csv", "true"], "--num-prof-steps: expected a number of steps"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--root", "run", "--layout", "2,1,1", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["train", *given, *flags])

    with pytest.raises(SystemExit) as refused:
        program.main()

    assert refused.value.code == 2 and said in capsys.readouterr().err


RUN_SH = "gpt3-xl/64 8 128 --partition_method custom:0,8,14,21,27 --num_prof_steps 4 --export_timing_csv true --root x"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "--standalone --nproc-per-node=4"),
        ({"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1", "NUM_GPUS": "2"},
         "--nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 --nproc-per-node=2"),
    ],
)  # fmt: skip
def test_merak_s_command_line_becomes_torchrun_s(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "NUM_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["run", *RUN_SH.split()])
    monkeypatch.setattr(os, "execv", lambda _, words: started.extend(words))

    run.main()

    job = (
        "-m cairn_bench.reconfigure.train --model gpt3-xl/64 --layout 4,1,1 --micro-batch 8 --batch 1024 --steps 100 "
        "--timeout 600.0 --partition-method custom:0,8,14,21,27 --num-prof-steps 4 --export-timing-csv --root x"
    )
    assert started == [sys.executable, "-m", "torch.distributed.run", *expected.split(), *job.split()]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NUM_GPUS": "3"}, "NUM_GPUS=3 on NNODES=1: expected 4 ranks, of --pp 4 --tp 1 --dp 1"),
        ({"NNODES": "two"}, "NNODES: expected a whole number from 1, found 'two'"),
        ({"NNODES": "2"}, "MASTER_ADDR: expected the address of the node with NODE_RANK=0"),
        ({"NNODES": "2", "NODE_RANK": "2"}, "NODE_RANK: expected less than the 2 of NNODES, found 2"),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
         "MASTER_ADDR: 127.0.0.1 does not answer at port 1 (Connection refused): expected the same command there"),
    ],
)  # fmt: skip
def test_nodes_that_do_not_fit_or_answer_are_named_before_anything_starts(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "NUM_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["run", "gpt3-xl/64", "8", "128", "--timeout", "0.01"])

    with pytest.raises(SystemExit) as refused:
        run.main()

    assert refused.value.code == 2 and said in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="weights are on a GPU")
def test_a_model_that_memory_cannot_hold_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for main, words in ((run.main, "run gpt3-175b 1 8"),
                        (program.main, "train --model gpt3-175b --layout 4,1,1 --root run --steps 1")):  # fmt: skip
        monkeypatch.setattr(sys, "argv", words.split())

        with pytest.raises(SystemExit) as refused:
            main()

        said = " ".join(capsys.readouterr().err.split())
        assert refused.value.code == 2
        assert "layout 4,1,1: expected at least 2803.5 GB of memory" in said and "; NAME/N has an Nth" in said


def test_a_folder_that_cannot_be_made_is_named_before_training(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    settings = Settings(str(tmp_path / "run"), Layout(1, 1, 1), 1, timeout=60, export_timing_csv=str(tmp_path / "out"))

    with Job(1, train, settings) as job, pytest.raises(Failed, match="File exists: .*out"):
        job.finish(120)

    assert not (tmp_path / "run").exists()


def test_torchrun_records_as_documented(tmp_path: Path) -> None:
    (line,) = re.findall(r"^torchrun .*reconfigure\.train.*", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    words = line.replace("/mnt/nvme", str(tmp_path)).replace(" records ", f" {tmp_path}/records ").split()[1:]
    given = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    ran = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", *words, "--host-memory=32MiB"],
                         capture_output=True, text=True, env=os.environ | given, timeout=240, check=False)  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    for rank in range(4):
        rows = rows_of(tmp_path / f"records/instructions-{rank}.csv")
        assert {row["step"] for row in rows if row["instruction"] == "forward"} == {*range(11, 21)}


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Any]:
    """A pipeline of one stage, in this process."""
    import torch
    from cairn_bench.reconfigure.parallel import Trainer

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    made = Trainer(Settings("", Layout(1, 1, 1), 1), torch.device("cpu"))
    made.initialize()
    yield made
    dist.destroy_process_group()


def test_steps_that_are_not_recorded_run_torch_untouched(trainer: Any) -> None:
    from cairn_bench.reconfigure.instructions import Recorder
    from torch.distributed.pipelining import schedules

    stage, before = trainer.pipeline_stage, (dict(vars(schedules)), set(vars(trainer.pipeline_stage)))
    recorder = Recorder(trainer)
    trainer.step(1)
    hooks = len(trainer.optimizer._optimizer_step_pre_hooks)
    with recorder.step(2):
        assert schedules._batch_p2p is not before[0]["_batch_p2p"]
        trainer.step(2)
    with pytest.raises(ZeroDivisionError), recorder.step(3):
        raise ZeroDivisionError

    assert vars(schedules) == before[0]
    assert not {name for name in vars(stage) if name.endswith(("_chunk", "_ops"))}
    assert len(trainer.optimizer._optimizer_step_pre_hooks) == hooks
    trainer.step(4)
    assert {span.step for span in recorder.spans()} == {2}


def test_a_fence_is_recorded_and_no_part_of_the_optimizer(trainer: Any, tmp_path: Path) -> None:
    import torch
    from cairn_bench.reconfigure import records
    from cairn_bench.reconfigure.instructions import Recorder

    recorder = Recorder(trainer)
    with cairn.Checkpointer(tmp_path / "run", host_memory="32MiB", trace_events=100) as checkpointer:
        checkpointer.protect(trainer.optimizer)
        with checkpointer.pause_copies(at_most=60):  # So that the fence has to wait.
            save = checkpointer.save(1, {"model": trainer.model.state_dict(), "more": torch.zeros(1 << 20)})
            with recorder.step(2):
                trainer.step(2)
        save.wait()
        of_cairn = records.of_cairn(records.trace_of(checkpointer, str(tmp_path)))

    (optimizer,) = (span for span in recorder.spans() if span.instruction == "optimizer")
    last = max(span.end for span in recorder.spans() if span.instruction == "backward")
    fences = [span for span in of_cairn if span.instruction == "fence"]
    assert fences and {span.step for span in fences} == {1}
    assert all(last < span.start <= span.end < optimizer.start < optimizer.end for span in fences)
    assert min(span.start for span in of_cairn if span.instruction == "capture") > last


def test_a_forward_of_the_last_stage_includes_the_loss(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cairn_bench.reconfigure.instructions import Recorder

    original, ended = trainer.schedule._loss_fn, []

    def loss(*arguments: Any) -> Any:
        found = original(*arguments)
        ended.append(time.monotonic())
        return found

    monkeypatch.setattr(trainer.schedule, "_loss_fn", loss)
    recorder = Recorder(trainer)
    trainer.step(1)
    ended.clear()
    with recorder.step(2):
        trainer.step(2)

    forwards = [span for span in recorder.spans() if span.instruction == "forward"]
    assert len(forwards) == len(ended) == 8
    assert all(span.start < at < span.end for span, at in zip(forwards, ended, strict=True))


def test_another_pipelining_than_the_known_one_is_refused(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cairn_bench.reconfigure.instructions import Recorder
    from torch.distributed.pipelining import schedules

    monkeypatch.delattr(schedules, "_wait_batch_p2p")

    with pytest.raises(RuntimeError, match=r"expected _wait_batch_p2p in torch\.distributed\.pipelining\.schedules"):
        Recorder(trainer)
