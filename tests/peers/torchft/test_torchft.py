"""cairn.torchft with a real lighthouse, real Managers and replica groups in processes of their own, over gloo."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import cairn
import cairn.torchft
import programs
import pytest
import torch
from programs import TEXT, expect_alone, progress
from replica_groups import Job, lighthouse
from torchft import ProcessGroupGloo
from torchft.checkpointing.transport import CheckpointTransport

pytestmark = pytest.mark.skipif(not TEXT.exists(), reason=f"no text to train on: {TEXT}")


def steps(root: Path) -> list[int]:
    return [int(folder.name.partition("-")[2]) for folder in sorted(root.glob("step-*"))]


def test_a_killed_job_resumes_bit_exactly(tmp_path: Path) -> None:
    with Job(tmp_path / "whole", 2) as job:
        whole = [progress(group.finish()) for group in [job.start(0), job.start(1)]]

    with Job(tmp_path / "killed", 2) as job:
        groups = [job.start(replica, "--pause-at", 24) for replica in range(2)]
        for group in groups:
            group.wait_for("paused")
        for group in groups:
            group.kill()
    with Job(tmp_path / "killed", 2) as job:
        resumed = [progress(group.finish()) for group in [job.start(0), job.start(1)]]

    for before, after, all_of_it in zip(groups, resumed, whole, strict=True):
        assert progress(before.lines) == all_of_it[:24]
        assert after == all_of_it[-21:]  # Steps 21 to 40, and the digest.
    assert whole[0][-1] == whole[1][-1] and whole[0][0] != whole[1][0]
    # What is identical in the groups was written once, by the group that is number 0.
    assert [line for line in groups[0].lines if line.startswith("saved=")] == ["saved=10", "saved=20"]
    assert not [line for line in groups[1].lines if line.startswith("saved=")]
    assert steps(tmp_path / "killed/run/shared") == [20, 30, 40]
    for root in ("replica-train_0", "replica-train_1"):
        assert {20, 30, 40} <= set(steps(tmp_path / "killed/run" / root))
    saved = cairn.load(tmp_path / "killed/run/shared")
    assert saved["torchft"] == {"step": 40, "batches_committed": 80}
    assert sorted(saved) == ["model", "optimizer", "torchft"]


def test_a_killed_group_gets_the_others_state_and_the_job_goes_on_as_if_nobody_had_died(tmp_path: Path) -> None:
    with Job(tmp_path / "whole", 2, "--dropout", 0) as job:
        whole = [progress(group.finish()) for group in [job.start(0), job.start(1)]]

    with Job(tmp_path / "killed", 2, "--dropout", 0) as job:
        groups = [job.start(replica, "--pause-at", 14) for replica in range(2)]
        for group in groups:
            group.wait_for("paused")
        groups[0].kill()
        again = job.start(0)
        groups[1].go_on()
        survivor, recovered = progress(groups[1].finish()), progress(again.finish())

    assert survivor == whole[1]
    assert recovered == whole[0][-len(recovered) :]
    assert recovered[0].startswith("step=15 ")  # It had restored step 10, and got step 14 from the other group.


def test_another_group_takes_over_from_a_dead_writer_and_gives_the_root_back(tmp_path: Path) -> None:
    with Job(tmp_path, 1, "--dropout", 0) as job:
        first, other = job.start(0, "--pause-at", 0, 14), job.start(1, "--pause-at", 0, 14, 24)
        for pause in (0, 14):
            first.wait_for("paused")
            other.wait_for("paused")
            if pause == 0:
                job.lighthouse.wait_for("[2 heartbeating]")  # The first quorum waits for both.
                first.go_on()
                other.go_on()
        first.kill()
        other.go_on()
        other.wait_for("paused")  # After step 24, alone.
        assert steps(job.root / "shared") == [10, 20]

        job.lighthouse.wait_for("step: 23,")
        again = job.start(0)
        job.lighthouse.wait_for("Received quorum request for replica train_0:")
        other.go_on()
        lines = other.finish(), again.finish()

    assert [[line for line in of if line.startswith("saved=")] for of in lines] == [
        ["saved=20"],
        ["saved=30", "saved=40"],
    ]
    assert "step=20" not in "".join(lines[1])
    assert lines[0][-1] == lines[1][-1] and lines[0][-1].startswith("digest=")
    model = cairn.load(job.root / "shared", step=40)["model"]
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.values())
    assert lines[0][-1] == f"digest={hashlib.sha256(weights).hexdigest()}"


def test_the_ranks_of_a_group_save_together(tmp_path: Path) -> None:
    for begin in (0, 3):
        server, address = lighthouse(1, 1000)
        group = programs.Job(Path(__file__).with_name("two_ranks.py"), tmp_path, TORCHFT_LIGHTHOUSE=address)
        assert f"from={begin}" in group.finish()
        server.kill()
    assert steps(tmp_path / "shared") == [4, 5, 6]
    assert {4, 5, 6} <= set(steps(tmp_path / "replica-group"))
    with cairn.Checkpointer(tmp_path / "shared", read_only=True, host_memory="32MiB") as reader:
        assert [one.world for one in reader.checkpoints()] == [2] * 3


# One process


class Transport(CheckpointTransport[Any]):
    """Hands the state from Manager to Manager within this process: recovery comes at once after a save."""

    def __init__(self, sent: queue.SimpleQueue[Any]) -> None:
        self._sent = sent

    def metadata(self) -> str:
        return ""

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        for _ in dst_ranks:
            self._sent.put(state_dict)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        return self._sent.get(timeout=60)

    def disallow_checkpoint(self) -> None:
        pass


@contextmanager
def managers(
    tensors: dict[str, torch.Tensor],
) -> Iterator[tuple[Callable[..., list[bool]], list[cairn.torchft.Manager]]]:
    """A replica group for each name, whose state is the tensor; and what makes one step of some of them."""
    server, address = lighthouse(1, 1000)
    stores, made = [], []
    sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for name, tensor in tensors.items():
        stores.append(torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))
        made.append(
            cairn.torchft.Manager(
                pg=ProcessGroupGloo(),
                state_dict=lambda tensor=tensor: {"tensor": tensor},
                load_state_dict=lambda state, tensor=tensor: tensor.copy_(state["tensor"]),
                min_replica_size=1,
                init_sync=False,
                replica_id=name,
                store_addr="127.0.0.1",
                store_port=stores[-1].port,
                rank=0,
                world_size=1,
                hostname="localhost",
                lighthouse_addr=address,
                checkpoint_transport=Transport(sent),
            )
        )
    server.wait_for(f"[{len(made)} heartbeating]")  # The first quorum waits for those that it knows.

    def step(*groups: cairn.torchft.Manager) -> list[bool]:
        """One step of these groups; whether each has committed it."""
        for manager in groups:
            manager.start_quorum()
            # A lighthouse that knows all of the last quorum waits for nobody else.
            server.wait_for(f"Received quorum request for replica {names[manager]}:")
        for manager in groups:
            manager.wait_quorum()
        return [manager.should_commit() for manager in groups]

    names = dict(zip(made, tensors, strict=True))
    try:
        yield step, made
    finally:
        for manager in made:
            manager.shutdown(wait=False)
        server.kill()


def test_recovery_waits_until_a_save_has_read_the_tensors(tmp_path: Path) -> None:
    slows, others = torch.full((64 << 20,), 1.0), torch.full((64 << 20,), 2.0)
    # Two fast ones: less than half of the groups that are alive get no quorum.
    with managers({"a": slows, "b": others, "c": others}) as (step, (slow, *fast)):
        with cairn.torchft.Checkpoints(slow, tmp_path / "run", host_memory="32MiB") as checkpoints:
            assert step(slow, *fast) == [True] * 3
            assert step(*fast) == [True] * 2
            save = checkpoints.save({"tensor": slows})
            assert save is not None

            step(slow, *fast)

            assert slow.current_step() == 3 and torch.equal(slows, others)
            save.wait()
        saved = cairn.load(tmp_path / "run/shared")
        assert saved["torchft"]["step"] == 1 and torch.equal(saved["tensor"], torch.ones_like(slows))


def test_a_step_waits_until_a_save_has_read_the_tensors(tmp_path: Path) -> None:
    tensor = torch.full((64 << 20,), 1.0)
    with managers({"a": tensor}) as (step, (manager,)):
        with cairn.torchft.Checkpoints(manager, tmp_path / "run", host_memory="32MiB") as checkpoints:
            assert step(manager) == [True]
            checkpoints.save({"tensor": tensor})
            assert step(manager) == [True]
            tensor.fill_(2.0)  # As an optimizer does once the step is committed.
        assert torch.equal(cairn.load(tmp_path / "run/shared")["tensor"], torch.ones_like(tensor))


def saved_at(step_number: int, root: Path, seen: int, **options: Any) -> list[int]:
    """The steps that are in `shared` after a Manager at that step has saved."""
    with managers({"a": torch.zeros(4)}) as (step, (manager,)):
        manager.load_state_dict({"step": step_number - 1, "batches_committed": step_number - 1})
        with cairn.torchft.Checkpoints(manager, root, host_memory="32MiB", **options) as checkpoints:
            step(manager)
            checkpoints.save({"tensor": torch.zeros(4), "seen": seen})
    return steps(root / "shared")


@pytest.mark.parametrize(("own", "seen"), [([10], 10), ([5], 5), ([5, 10, 20], 10), ([20], 0)])
def test_a_group_s_own_part_is_of_the_step_or_of_the_newest_before(
    tmp_path: Path, own: list[int], seen: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert saved_at(10, tmp_path, 0, replica="b", own=["seen"]) == [10]
    with cairn.Checkpointer(tmp_path / "replica-a", host_memory="32MiB") as checkpointer:
        for one in own:
            checkpointer.save(one, {"seen": one})
    with (
        managers({"a": torch.zeros(4)}) as (step, (manager,)),
        cairn.torchft.Checkpoints(manager, tmp_path, replica="a", own=["seen"], host_memory="32MiB") as checkpoints,
    ):
        tree = checkpoints.restore({"tensor": torch.ones(4), "seen": 0})
        assert tree["seen"] == seen and manager.current_step() == 10 and not tree["tensor"].any()
        assert ("expected step 10" in caplog.text) == (10 not in own)
        step(manager)
        checkpoints.save(tree | {"seen": 11})
    assert cairn.load(tmp_path / "replica-a", step=11) == {"seen": 11}


def test_a_step_that_another_group_has_passed_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert saved_at(10, tmp_path, 0) == [10]
    assert saved_at(9, tmp_path, 0) == [10]
    assert "has step 10 from another replica group: step 9 is left out" in caplog.text
    assert saved_at(11, tmp_path, 0) == [10, 11]


def test_a_group_that_was_suspended_gets_the_root_again(tmp_path: Path) -> None:
    tensor = torch.zeros(4)
    with managers({"a": tensor, "b": torch.zeros(4), "c": torch.zeros(4)}) as (step, (slow, *fast)):
        options: dict[str, Any] = {"host_memory": "32MiB", "open_timeout": 0}
        first = cairn.torchft.Checkpoints(slow, tmp_path, **options)
        with cairn.torchft.Checkpoints(fast[0], tmp_path, **options) as second:
            step(slow, *fast)
            assert first.save({"tensor": tensor}) is not None
            assert second.save({"tensor": tensor}) is None
            first.drain()
            step(*fast)
            assert second.save({"tensor": tensor}) is not None  # It displaces the first.
            second.drain()
            step(slow, *fast)
            step(slow, *fast)
            assert second.save({"tensor": tensor}) is None
            second.drain()
            assert first.save({"tensor": tensor}) is not None
        first.close()
    assert steps(tmp_path / "shared") == [1, 2, 4]


def life(root: Path, until: int, saves: list[int], **options: Any) -> list[int]:
    """One run of a group: it restores, passing over what is damaged, and trains. (step from which it goes on, its own part,
    steps that were saved)"""
    tensor = torch.zeros(1 << 16)
    saved = []
    options = {"replica": "a", "own": ["seen"], "host_memory": "32MiB", **options}
    with managers({"a": tensor}) as (step, (manager,)), cairn.torchft.Checkpoints(manager, root, **options) as made:
        tree: dict[str, Any] = {"tensor": tensor, "seen": 0}
        with suppress(cairn.NotFound):
            tree = made.restore(tree, fall_back=True)
        begin = manager.current_step(), tree["seen"]
        while manager.current_step() < until:
            step(manager)
            number = manager.current_step()
            if number in saves and (save := made.save(tree | {"seen": number})):
                save.wait()
                saved.append(number)
    return [*begin, *saved]


@pytest.mark.parametrize("file", ["manifest.json", "shard-00000.safetensors"])
def test_training_goes_on_over_a_damaged_checkpoint(tmp_path: Path, file: str) -> None:
    assert life(tmp_path, 4, [2, 4]) == [0, 0, 2, 4]
    damaged = tmp_path / "shared/step-00000000000000000004" / file
    damaged.write_bytes(damaged.read_bytes()[:20])

    assert life(tmp_path, 6, [3, 4, 6], keep_last=9) == [2, 2, 3, 4, 6]

    with cairn.Checkpointer(tmp_path / "shared", read_only=True, host_memory="32MiB") as reader:
        for step in (2, 3, 4, 6):
            reader.verify(step)


@pytest.mark.parametrize("file", ["manifest.json", "shard-00000.safetensors"])
def test_a_damaged_own_part_is_passed_over(tmp_path: Path, file: str) -> None:
    life(tmp_path, 4, [2, 4])
    damaged = tmp_path / "replica-a/step-00000000000000000004" / file
    damaged.write_bytes(damaged.read_bytes()[:20])

    assert life(tmp_path, 6, [5, 6]) == [4, 2, 5, 6]


def test_a_group_keeps_its_own_part_of_each_shared_step(tmp_path: Path) -> None:
    tensor = torch.zeros(1 << 16)
    options: dict[str, Any] = {"replica": "a", "own": ["seen"], "host_memory": "32MiB", "keep_last": 1}
    with managers({"a": tensor}) as (step, (manager,)):
        made = cairn.torchft.Checkpoints(manager, tmp_path, **options)
        for number in range(1, 6):
            step(manager)
            made.save({"tensor": tensor, "seen": number})
            if number == 2:
                made.drain()
                made._leave()  # As if the saves from now on never became durable.
                made._save_shared = lambda *_: None  # type: ignore[method-assign]
        made.drain()
        assert steps(tmp_path / "shared") == [2] and 2 in steps(tmp_path / "replica-a")
        made.close()
    assert life(tmp_path, 6, [6])[:2] == [2, 2]


def test_own_parts_without_a_shared_step_are_removed(tmp_path: Path) -> None:
    with cairn.Checkpointer(tmp_path / "replica-a", host_memory="32MiB") as checkpointer:
        for one in (2, 4):
            checkpointer.save(one, {"seen": one})
    assert life(tmp_path, 5, [1, 3, 5]) == [0, 0, 1, 3, 5]


def test_a_group_that_was_away_gets_no_own_part_of_a_run_that_was_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: dict[str, tuple[int, str]] = {}

    def run(name: str, saves: dict[int, str], groups: str) -> None:
        """These groups restore, and train until the last step that some of them save."""
        tensors = {group: torch.zeros(4) for group in groups}
        with ExitStack() as stack:
            step, found = stack.enter_context(managers(tensors))
            made = {}
            for group, manager in zip(groups, found, strict=True):
                options: dict[str, Any] = {"replica": group, "own": ["seen"], "host_memory": "32MiB"}
                made[group] = stack.enter_context(cairn.torchft.Checkpoints(manager, tmp_path, **options))
                tree = {"tensor": tensors[group], "shared": "", "seen": ""}
                with suppress(cairn.NotFound):
                    tree = made[group].restore(tree)
                seen[group] = manager.current_step(), f"{tree['shared']} {tree['seen']}"
            while found[0].current_step() < max(saves, default=0):
                assert step(*found) == [True] * len(found)
                for group in saves.get(found[0].current_step(), ""):
                    made[group].save({"tensor": tensors[group], "shared": name, "seen": name})
                    made[group].drain()

    run("first", {2: "ab", 4: "b"}, "ab")  # It dies before "a", which writes, has saved step 4.
    assert steps(tmp_path / "shared") == [2] and steps(tmp_path / "replica-b") == [2, 4]
    run("second", {4: "a", 5: "a"}, "a")
    assert seen["a"] == (2, "first first")
    assert "given up" not in caplog.text

    run("third", {}, "ab")
    assert seen == {"a": (5, "second second"), "b": (5, "second first")}
    root = tmp_path / "replica-b"
    assert f"{root}: step 4 is passed over: it is of a run that was given up" in caplog.text
    assert f"{root}: expected step 5, as in {tmp_path / 'shared'}, found step 2" in caplog.text

    run("fourth", {6: "ab"}, "ab")
    caplog.clear()
    run("fifth", {}, "ab")
    assert seen == dict.fromkeys("ab", (6, "fourth fourth")) and caplog.text == ""


def test_a_group_that_joins_a_run_knows_what_it_has_given_up() -> None:
    with managers({"a": torch.zeros(4), "b": torch.zeros(4), "c": torch.zeros(4)}) as (step, (slow, *fast)):
        for manager in fast:
            manager.load_state_dict({"step": 2, "batches_committed": 2, "given_up": {"d": ["1"]}})
        step(slow, *fast)
        assert slow.current_step() == 3 and slow.state_dict()["given_up"] == {"d": ["1"]}


def test_a_save_that_was_refused_can_be_tried_again(tmp_path: Path) -> None:
    with (
        managers({"a": torch.zeros(4)}) as (step, (manager,)),
        cairn.torchft.Checkpoints(manager, tmp_path, replica="a", own=["seen"], host_memory="32MiB") as made,
    ):
        step(manager)
        with pytest.raises(cairn.InvalidArgument, match="bad"):
            made.save({"tensor": torch.zeros(4), "seen": 1, "bad": object()})
        assert made.save({"tensor": torch.zeros(4), "seen": 1}) is not None
    assert steps(tmp_path / "shared") == [1] == steps(tmp_path / "replica-a")


def test_only_a_committed_step_is_saved_and_only_once(tmp_path: Path) -> None:
    with managers({"a": torch.zeros(4)}) as (step, (manager,)):
        tree = {"tensor": torch.zeros(4)}
        with cairn.torchft.Checkpoints(manager, tmp_path / "run", host_memory="32MiB") as checkpoints:
            with pytest.raises(cairn.NotFound):
                checkpoints.restore(tree)
            assert checkpoints.save(tree) is None
            assert step(manager) == [True]
            assert checkpoints.save(tree) is not None
            assert checkpoints.save(tree) is None

            manager.start_quorum()
            manager.wait_quorum()
            manager.report_error(RuntimeError("a lost gradient"))
            assert not manager.should_commit()
            assert checkpoints.save(tree) is None

            with pytest.raises(cairn.FailedPrecondition, match="before the first quorum"):
                checkpoints.restore(tree)
            with pytest.raises(cairn.InvalidArgument, match='without the key "torchft"'):
                checkpoints.save(tree | {"torchft": 1}) if step(manager) else None


def test_it_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"expected a cairn\.torchft\.Manager"):
        cairn.torchft.Checkpoints(object(), tmp_path)  # type: ignore[arg-type]
    with managers({"a": torch.zeros(4)}) as (step, (manager,)):
        with pytest.raises(cairn.InvalidArgument, match="replica: expected letters"):
            cairn.torchft.Checkpoints(manager, tmp_path / "run", own=["rng"])
        with cairn.torchft.Checkpoints(manager, tmp_path / "run", replica="a", own="rng", host_memory="32MiB") as made:
            step(manager)
            with pytest.raises(cairn.InvalidArgument, match="own: expected keys of the tree, which lacks rng"):
                made.save({"tensor": torch.zeros(4)})


def test_it_needs_no_other_framework() -> None:
    expect_alone("torchft")
