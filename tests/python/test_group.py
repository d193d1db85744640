"""The plain API in a group: real processes, real stores, real kills."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import cairn
import pytest
import safetensors
import torch
from jobs import SHARED, alone, expect_whole
from ranks import World

Worlds = Callable[..., World]


def shards(root: Path, step: int) -> list[set[str]]:
    """The names of the tensors in each shard."""
    found = []
    for file in sorted(root.glob(f"step-*{step}/shard-*")):
        with safetensors.safe_open(file, "pt") as shard:
            found.append(set(shard.keys()))
    return found


def test_each_rank_has_its_own_and_what_is_replicated_is_written_once(worlds: Worlds, root: Path) -> None:
    world = worlds(3)
    for step in (1, 2):
        assert world.all(f"c.save({step}, tree({step}, rank)).result()") == [step] * 3

    assert world.all("same(c.restore(blank(rank)), tree(2, rank))") == [True] * 3
    assert world.all("same(c.restore(blank(rank), 1), tree(1, rank))") == [True] * 3
    assert world.all("same(c.load(2), tree(2, rank))") == [True] * 3
    held = shards(root, 2)
    assert all("mine" in names for names in held)
    # A small state lies together, and not with rank 0.
    assert [names - {"mine"} for names in held] == [set(), {f"shared/w{i}" for i in range(6)}, set()]
    expect_whole(root, 1, 2)


def test_a_process_group_of_torch(root: Path, worlds: Worlds) -> None:
    world = worlds(2, fresh=True)
    code = f"""
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        dist.init_process_group("gloo")
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp(torch.randn(4, 8) + rank).sum().backward()
        d = cairn.Checkpointer({str(root / "ddp")!r}, group=dist.group.WORLD, group_timeout=20, compare_replicas="always",
                               host_memory="8MiB", chunk="1MiB", queue_depth=2)
        d.save(1, {{"model": ddp, "mine": torch.full((2,), float(rank))}}).wait()
        before = {{k: v.clone() for k, v in ddp.state_dict().items()}}
        for v in ddp.state_dict().values(): v.zero_()
        """
    assert world.all("\n".join(line[8:] for line in code.splitlines())) == [None] * 2

    got = world.all('d.restore({"model": ddp, "mine": None})["mine"].tolist()')

    assert got == [[0.0, 0.0], [1.0, 1.0]]
    # Buffers are rank 0's, as DDP has it; ranks saw different batches.
    assert world[0].run("all(torch.equal(v, before[k]) for k, v in ddp.state_dict().items())")
    mean = '[ddp.state_dict()["module.1.running_mean"].tolist(), before["module.1.running_mean"].tolist()]'
    (now0, then0), (now1, then1) = world.all(mean)
    assert now0 == now1 == then0 != then1
    first, second = shards(root / "ddp", 1)
    assert {"model/module.1.running_mean", "model/module.1.num_batches_tracked"} <= first
    assert "model/module.0.weight" in first ^ second
    world.all("d.close()")
    world.all("dist.destroy_process_group()")


def test_only_what_is_replicated_is_read_at_another_world_size(worlds: Worlds, root: Path) -> None:
    worlds(3).all("c.save(1, tree(1, rank)).wait(); c.close()")

    with alone(root) as reader:
        with pytest.raises(
            cairn.InvalidArgument,
            match=r"saved by 3 ranks and is read by 1:.* its own mine, rank\. .*replicated=\['mine', 'rank'\]",
        ):
            reader.load()
        with pytest.raises(cairn.InvalidArgument, match="its own mine"):
            reader.load(names="mine")
        assert float(reader.load(names="shared/w2")["shared/w2"][0]) == 3
        tree = {"shared": {f"w{i}": torch.zeros(500 * (i + 1)) for i in range(6)}, "step": 0}
        assert reader.restore(tree)["step"] == 1
        assert [float(one[-1]) for one in tree["shared"].values()] == [1, 2, 3, 4, 5, 6]
        with pytest.raises(cairn.InvalidArgument, match="its own mine"):
            reader.restore(tree | {"mine": torch.zeros(3, 1000)})

    two = worlds(2)
    both = [answer["message"] for answer in two.answers("c.restore(blank(rank))")]
    assert all("saved by 3 ranks and is read by 2" in message for message in both)
    some = "{k: v for k, v in blank(rank).items() if k in ('shared', 'step')}"
    assert two.all(f"c.restore({some})['step']") == [1, 1]
    # The line goes on at the new size.
    assert two.all("c.save(2, tree(2, rank)).result()") == [2, 2]


def test_what_one_process_saved_is_read_by_several(worlds: Worlds, root: Path) -> None:
    with cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2) as checkpointer:
        checkpointer.save(1, {"shared": {"0": torch.ones(5)}, "step": 1}).wait()

    world = worlds(2)

    assert world.all("c.load()['step']") == [1, 1]
    assert world.all("float(c.restore({'shared': {'0': torch.zeros(5)}, 'step': 0})['shared']['0'].sum())") == [5, 5]


DIFFERENCES = {
    "a value": ("t['step'] += rank", r'"step": rank 0 has 1, rank 1 has 2'),
    "a shape": (
        "if rank: t['shared']['w3'] = torch.zeros(7)",
        r'"shared/w3": rank 0 has F32 \[2000\], rank 1 has F32 \[7\]',
    ),
    "a dtype": ("if rank: t['shared']['w3'] = t['shared']['w3'].int()", r'"shared/w3": rank 0 has F32 .* I32 \[2000\]'),
    "a name": ("if rank: del t['shared']['w5']", r'"shared/w5.*": rank 0 has .*, rank 1 has nothing'),
    "one more": ("if rank: t['shared']['more'] = 'x'", r'"shared/more": rank 0 has nothing, rank 1 has "x"'),
    "contents": ("t['shared']['w1'][7] += rank", r'"shared/w1 \(contents\)": rank 0 has CRC \w+, rank 1 has CRC \w+'),
}


def test_replicas_that_differ_fail_the_save_by_name(worlds: Worlds, root: Path) -> None:
    world = worlds(2, SHARED + ", compare_replicas='always'")

    for change, expected in DIFFERENCES.values():
        code = f"t = tree(1, rank)\n{change}\nc.save(1, t).wait()"
        for answer in world.answers(code):
            assert answer.get("error") == "FailedPrecondition", answer
            assert re.search(expected, answer["message"]), answer["message"]

    assert world.all("c.save(1, tree(1, rank)).result()") == [1, 1]
    expect_whole(root, 1)


COUNT = """
from cairn._ranks import compared
digested, of = [], compared.crc_of
compared.crc_of = lambda tensor: digested.append(tensor.nbytes) or of(tensor)
def count(step, t):
    digested.clear()
    save = c.save(step, t)
    return [sum(digested), save.result()]
def unlike(step):
    t = tree(step, rank)
    t["shared"]["w1"][7] += rank
    return t
"""
ALL = 4 * 500 * (1 + 2 + 3 + 4 + 5 + 6)


def test_contents_are_compared_at_the_first_save_and_when_sizes_change(worlds: Worlds, root: Path) -> None:
    world = worlds(2, SHARED)
    world.all(COUNT)
    # Whichever it is, it is named.
    for name in ("w0", "w2", "w3", "w4", "w5"):
        for answer in world.answers(f"t = tree(1, rank); t['shared']['{name}'][7] += rank\nc.save(1, t).wait()"):
            assert f'"shared/{name} (contents, first save)": rank 0 has CRC' in answer["message"], answer
    # A first save that ends before it could compare leaves that to the next one.
    for change in ("", "if rank: t['bad'] = print"):
        answers = world.answers(f"t = unlike(1)\n{change}\nc.save(1, t).wait()")
        assert all(
            "bad" in one["message"] or "shared/w1 (contents, first save)" in one["message"] for one in answers
        ), answers
    assert world.all("count(1, tree(1, rank))") == [[ALL, 1]] * 2
    assert world.all("count(2, tree(2, rank))") == [[0, 2]] * 2
    longer = "t = tree(3, rank); t['shared']['w0'] = torch.ones(501)"
    assert world.all(f"{longer}; count(3, t)") == [[ALL + 4, 3]] * 2
    assert world.all(f"{longer}; count(4, t)") == [[0, 4]] * 2
    # A save that only one rank takes for a first one fails, and costs the next ones nothing.
    for answer in world.answers("if rank: t = tree(5, rank)\nc.save(5, t).wait()"):
        assert '(contents, first save)": rank 0 has nothing, rank 1 has CRC' in answer["message"], answer
    assert world.all(f"{longer}; count(6, t)") == [[0, 6]] * 2
    # Before the first has ended, nobody knows that it will fail: the second cannot be committed either.
    world.all("t = unlike(7); t['shared']['w0'] = torch.ones(502); one = c.save(7, t); two = c.save(8, t)")
    for save in ("one", "two"):
        assert all("replicated values differ" in answer["message"] for answer in world.answers(f"{save}.wait()"))
    expect_whole(root, 3, 4, 6)


def test_what_a_rank_keeps_its_own_of_is_not_replicated(worlds: Worlds, root: Path) -> None:
    two = worlds(2, SHARED + ", per_rank='shared/w1'")
    two.all("t = tree(1, rank); t['shared']['w1'] += rank; c.save(1, t).wait()")

    assert two.all("same(c.restore(blank(rank)), t)") == [True] * 2
    two.all("c.close()")
    with alone(root) as reader:
        with pytest.raises(cairn.InvalidArgument, match=r"its own mine, shared/w1, rank\."):
            reader.load()
        assert float(reader.load(names="shared/w2")["shared/w2"][0]) == 3


def test_a_rank_that_finds_no_checkpoint_tells_the_others(worlds: Worlds, root: Path) -> None:
    world = worlds(3, timeout=2)
    world.all("c.save(1, tree(1, rank)).wait()")
    world[1].run("def lost(*_):\n    raise cairn.NotFound('not on this node')\nc._engine.reading._own_view = lost")

    answers = world.answers("c.restore(blank(rank))")

    # Not NotFound, by which a job would start anew: rank 0 has found one.
    assert [answer["error"] for answer in answers] == ["FailedPrecondition"] * 3
    for answer in answers:
        assert "is not visible on rank 1" in answer["message"] and "not on this node" in answer["message"]


def test_ranks_that_save_different_steps_hear_so(worlds: Worlds, root: Path) -> None:
    world = worlds(2, timeout=600)
    for answer in world.answers("c.save(1 + rank, tree(1, rank)).wait()"):
        assert "ranks save different steps: rank 0 saves 1, rank 1 saves 2" in answer["message"]
    assert world.all("c.save(3, tree(3, rank)).result()") == [3, 3]
    # One rank finds out by itself that its step is wrong, and the other one would wait for it.
    for wrong in (0, 1):
        for answer in world.answers(f"c.save('x' if rank == {wrong} else 4, tree(4, rank)).wait()"):
            assert answer["error"] in ("InvalidArgument", "FailedPrecondition"), answer
            assert (
                "step: expected a whole number of 0 or more" in answer["message"] and "found 'x'" in answer["message"]
            )
    mine, theirs = world.answers("c.save(4 if rank else 3, tree(4, rank)).wait()")
    assert mine["error"] == "AlreadyExists", mine
    assert (
        "ranks save different steps: rank 0 saves 3, rank 1 saves 4, which failed at once: rank 0: "
        in theirs["message"]
    )
    assert world.all("c.save(5, tree(5, rank)).result()") == [5, 5]
    expect_whole(root, 3, 5)


def test_a_rank_that_cannot_save_or_restore_tells_the_others(worlds: Worlds, root: Path) -> None:
    world = worlds(2)

    bad = {
        "bad": "c.save(1, tree(1, rank) | ({'bad': print} if rank == 1 else {}))",
        "pin: expected True or False, found 'yes'": "c.save(1, tree(1, rank), pin='yes' if rank == 1 else False)",
    }
    for found, save in bad.items():
        mine, theirs = world.answers(f"{save}.wait()")

        assert f"rank 1: InvalidArgument: {found}" in mine["message"] and theirs["error"] == "InvalidArgument"
    assert world.all("c.save(2, tree(2, rank)).result()") == [2, 2]
    expect_whole(root, 2)

    world.all(
        """
class Silent(Exception):
    def __str__(self): raise RuntimeError
class Bad:
    def state_dict(self): raise Silent
    def load_state_dict(self, state): pass
def save_bad():
    try:
        c.save(3, {"b": Bad() if rank == 1 else 1}).wait()
    except Silent:
        return "silent"
"""
    )
    mine, theirs = world.answers("save_bad()")
    assert "rank 1: Silent: Silent" in mine["message"] and theirs["value"] == "silent"
    for wrong in (0, 1):
        answers = world.answers(f"c.restore(blank(rank), cast='x' if rank == {wrong} else None)")
        assert all('cast: expected "allow"' in answer["message"] for answer in answers)
        assert answers[1 - wrong]["message"].startswith(f"rank {wrong}: ")

    world.all("o = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])")
    assert world.all("c.save(3, tree(3, rank) | {'o': o}).result()") == [3, 3]
    world.all(
        "b = blank(rank) | {'o': (torch.optim.SGD if rank else torch.optim.AdamW)([torch.nn.Parameter(torch.ones(3))])}"
    )

    for rank, answer in enumerate(world.answers("c.restore(b)")):
        assert answer["error"] == "InvalidArgument" and ("rank 1: " in answer["message"]) == (rank == 0)
        assert "o: the tree has SGD, the checkpoint has the state of AdamW" in answer["message"]

    assert world.all("float(b['mine'].abs().sum() + b['shared']['w0'].abs().sum())") == [0.0, 0.0]


def test_a_rank_that_never_comes_is_named_within_the_deadline(worlds: Worlds, root: Path) -> None:
    world = worlds(2, timeout=4)

    answer = world[0].start("c.save(1, tree(1, rank)).wait()").answer()

    assert answer["error"] == "DeadlineExceeded"
    assert "step 1: nothing from rank 1" in answer["message"]
    assert "every rank calls save for every step, none alone" in answer["message"]
    expect_whole(root)


@pytest.mark.parametrize("caller", [0, 1])
def test_a_save_that_one_rank_makes_alone_shifts_nothing(worlds: Worlds, root: Path, caller: int) -> None:
    world = worlds(2, timeout=1)
    world.all("from cairn._dcp import direct; state = {'w': torch.ones(3), 'n': 1}; None")
    saves = ("c.save({}, tree({}, rank)).result()", "direct.start_save(c, {}, state).result()")
    step = 1
    for save in (*saves, saves[0]):
        assert world.all(save.format(step, step)) == [step] * 2

        alone = world[caller].start(save.format(step + 1, step + 1)).answer()

        assert alone["error"] == "DeadlineExceeded", alone
        assert f"nothing from rank {1 - caller}" in alone["message"] or (
            f"rank 1 called save of step {step + 1}, and rank 0 did not within group_timeout" in alone["message"]
        )
        step += 2
    # One in flight meets the next save of both, which comes behind it.
    world[caller].run(f"one = c.save({step}, tree({step}, rank)); two = c.save({step + 1}, tree({step + 1}, rank))")
    world[1 - caller].run(f"two = c.save({step + 1}, tree({step + 1}, rank))")
    assert world.all("two.result()") == [step + 1] * 2
    steps = (step, step + 1) if caller == 0 else (step + 1, step)
    lone = world[caller].start("one.result()").answer()
    assert f"ranks save different steps: rank 0 saves {steps[0]}, rank 1 saves {steps[1]}" in lone["message"]
    assert world.all("c.drain()") == [None] * 2
    assert world.all("c.steps()") == [[3, 5, step + 1]] * 2


@pytest.mark.parametrize("caller", [0, 1])
def test_a_rank_that_restores_alone_is_told_who_else_must(worlds: Worlds, caller: int) -> None:
    world = worlds(2, timeout=2)
    assert world.all("c.save(1, tree(1, rank)).result()") == [1, 1]

    answer = world[caller].start("c.restore(blank(rank))").answer()

    assert answer["error"] == "DeadlineExceeded"
    assert f"nothing from rank {1 - caller}" in answer["message"]
    assert "every rank must restore, within group_timeout" in answer["message"]
    # It shifts no later one.
    assert world.all("same(c.restore(blank(rank)), tree(1, rank))") == [True, True]


@pytest.mark.parametrize("caller", [0, 1])
def test_a_restore_that_waits_for_others_ends_at_a_signal(worlds: Worlds, caller: int) -> None:
    world = worlds(2, timeout=600)
    assert world.all("c.save(1, tree(1, rank)).result()") == [1, 1]
    world[caller].run(
        "import signal\ndef interrupt(*_): raise KeyboardInterrupt\nsignal.signal(signal.SIGALRM, interrupt)"
    )

    answer = world[caller].start("signal.setitimer(signal.ITIMER_REAL, 0.5); c.restore(blank(rank))").answer()

    assert answer["error"] == "KeyboardInterrupt", answer
    if caller == 1:
        assert world.all("same(c.restore(blank(rank)), tree(1, rank))") == [True, True]


def test_opening_fails_on_every_rank_where_it_fails_on_one(root: Path) -> None:
    world = World(2, root)
    try:
        with cairn.Checkpointer(root, host_memory="8MiB", chunk="1MiB", queue_depth=2):
            answers = world.answers(f"open({str(root)!r}, group_timeout=20)")
        assert [answer["error"] for answer in answers] == ["FailedPrecondition"] * 2
        assert answers[1]["message"] == f"rank 0: {answers[0]['message']}"
        for wrong in (0, 1):
            for option in ("keep_last='x' if rank == {} else 3", "group_timeout='x' if rank == {} else 600"):
                answers = world.answers(f"open({str(root)!r}, {option.format(wrong)})")
                said = answers[wrong]["message"]
                assert said == f"{option.partition('=')[0]}: expected {said.partition(': expected ')[2]}"
                assert answers[1 - wrong]["message"] == f"rank {wrong}: {said}"
        world.open()
    finally:
        world.end()


# Ranks die. At each message of the commit, before it reaches the store: the rank that says it.
MESSAGES = [("attempt", 0), ("prepared", 1), ("outcome", 0)]


@pytest.mark.parametrize(("kind", "victim"), MESSAGES, ids=str)
def test_a_rank_that_dies_at_a_message(worlds: Worlds, root: Path, kind: str, victim: int) -> None:
    world = worlds(2, timeout=4)
    assert world.all("c.save(1, tree(1, rank)).result()") == [1, 1]
    world[victim].run(f"hold('{kind}')")
    world.all("s = c.save(2, tree(2, rank)); None")
    assert world[victim].run("reached()")

    world[victim].kill()
    answer = world[1 - victim].start("s.result()").answer()

    committed = kind == "outcome"  # It is on the disk by then, and whoever hears nothing looks there.
    if committed:
        assert answer.get("value") == 2, answer
    else:
        assert answer.get("error") in ("DeadlineExceeded", "UnknownOutcome"), answer
    world[1 - victim].kill()
    expect_whole(root, 1, *([2] if committed else []))
    if kind == "prepared":
        # Another world goes on from there.
        again = worlds(2)
        assert again.all("same(c.restore(blank(rank)), tree(1, rank))") == [True, True]
        assert again.all("c.save(2, tree(2, rank)).result()") == [2, 2]


@pytest.mark.parametrize(("kind", "host"), MESSAGES, ids=str)
def test_the_store_dies_with_its_host(worlds: Worlds, root: Path, kind: str, host: int) -> None:
    world = worlds(3, timeout=5, hosted_by=host)
    rest = [rank for rank in range(3) if rank != host]
    assert world.all("c.save(1, tree(1, rank)).result()") == [1] * 3
    world[host].run(f"hold('{kind}')")
    world.all("s = c.save(2, tree(2, rank)); None")
    assert world[host].run("reached()")

    world[host].kill()
    answers = [world[rank].start("s.result()").answer() for rank in rest]

    committed = kind == "outcome" and "value" in answers[0]
    for answer in answers:
        assert answer.get("value") == 2 or answer["error"] in ("IoError", "UnknownOutcome", "DeadlineExceeded"), answer
    for rank in rest:
        later = world[rank].start("c.save(3, tree(3, rank)).result()").answer()
        assert "store failed" in later["message"], later
        assert world[rank].run("c.close()") is None
        world[rank].leave()
        assert world[rank].ended() == 0
    with alone(root) as reader:
        steps = reader.steps()
    assert steps in ([[1, 2]] if committed else [[1], [1, 2]])
    expect_whole(root, *steps)


def test_kills_at_random_moments(worlds: Worlds, root: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(3):
        world = worlds(2, timeout=4)
        first = max([0, *world[0].run("c.steps()")]) + 1
        if first > 1:
            assert world.all(f"same(c.restore(blank(rank)), tree({first - 1}, rank))") == [True, True]
        assert world.all(f"saves = [c.save({first}, tree({first}, rank))]; saves[0].result()") == [first] * 2
        rest = f"for i in range({first + 1}, {first + 500}): saves.append(c.save(i, tree(i, rank))); saves[-1].wait()"
        for rank in world.ranks:
            rank.start(rest)
        victim = chance.randrange(2)
        threading.Timer(chance.random() * 0.3, world[victim].kill).start()
        answer = world[1 - victim].answer()
        assert answer.get("error") in ("DeadlineExceeded", "UnknownOutcome"), answer
        durable = [s for s in world[1 - victim].run("[s.step for s in saves if s.stats['phase'] == 'durable']")]
        acknowledged = max([acknowledged, *durable])
        world[1 - victim].kill()
        with alone(root) as reader:
            assert reader.steps()[-1] >= acknowledged
            for one in reader.steps():
                reader.verify(one)


def test_the_interpreter_ends_with_a_save_in_flight(worlds: Worlds, root: Path) -> None:
    world = worlds(2, fresh=True)
    world.all("c.save(1, tree(1, rank)); None")

    for rank in world.ranks:
        rank.leave()

    assert [rank.ended() for rank in world.ranks] == [0, 0]
    expect_whole(root, 1)


def test_closing_one_rank_ends_the_others_waits(worlds: Worlds, root: Path) -> None:
    world = worlds(2, timeout=600)
    world[1].run("c.close()")

    answer = world[0].start("c.save(1, tree(1, rank)).wait()").answer()

    assert "rank 1 closed the Checkpointer" in answer["message"]
    assert world[0].run("c.close()") is None
