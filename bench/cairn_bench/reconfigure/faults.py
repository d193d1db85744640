"""Kills random ranks of a job by SIGKILL while it saves and while it restores under another layout.

    python -m cairn_bench.reconfigure.faults --kills 50 --seed 1

Each job runs under a random layout of 4 to 16 ranks on the same root: it restores the newest checkpoint, trains three steps
and saves each. One to three of its ranks are killed at a random moment of a restore or of a save. Then the others must end
by themselves before the deadline, and the next job must restore, bit by bit, one state that a job was about to save: never
an older one than the newest that any rank called durable, never a mixture. Says what it saw, and fails at the first
promise that does not hold.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field

from .jobs import Job
from .layout import Layout
from .train import Settings, train

WORLDS = [Layout(2, 2, 1), Layout(1, 2, 2), Layout(4, 1, 1), Layout(2, 2, 2), Layout(4, 2, 1), Layout(4, 2, 2)]
PHASES = {"restore": ("ready", "restored"), "save": ("saving", "durable")}  # The events of a rank around each.
PATIENCE = 20.0  # Seconds that a rank waits for others; gloo's timeout and the Checkpointer's.
DEADLINE = 90.0  # Seconds after the kill within which every rank has ended: the timeouts follow each other.


class Broken(AssertionError):
    """A promise that did not hold."""


@dataclass
class Ledger:
    """What the jobs told so far about the root."""

    offered: dict = field(default_factory=lambda: defaultdict(list))  # Digests that a job was about to save, by step.
    durable: int = 0  # The newest step that a rank called durable.
    kills: dict = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    restored: int = 0  # How many restores were compared.
    ended: float = 0.0  # The longest that survivors took to end.
    took: dict = field(default_factory=lambda: dict.fromkeys(PHASES, 0.2))  # Seconds of the last whole one.

    def learn(self, job):
        """Broken if the job restored anything but one whole state that was offered, at or after the newest durable."""
        steps = {told["step"] for told in job.all("restored")}
        if len(steps) > 1:
            raise Broken(f"ranks restored different steps: {sorted(steps)}")
        for step in steps:
            if step < self.durable:
                raise Broken(f"step {self.durable} was durable, restored step {step}")
        for told in job.all("holds"):
            if told["digests"] not in self.offered[told["step"]]:
                raise Broken(f"step {told['step']}: restored tensors that no job saved together")
            self.restored += 1
        for told in job.all("saves"):
            self.offered[told["step"]].append(told["digests"])
        self.durable = max([self.durable, *(told["step"] for told in job.all("durable"))])
        for phase, (begin, end) in PHASES.items():
            if (begun := job.all(begin)) and (done := job.all(end)):
                self.took[phase] = max(0.01, done[0]["at"] - begun[0]["at"])


def strike(job, chance, phase, took):
    """Kills one to three ranks in the phase, once. The moment, or None if the job ended before."""
    begin, _ = PHASES[phase]
    passed = chance.randrange(3) if phase == "save" else 0  # Saves that go by before.
    at = None
    while job.running:
        heard = job.hear(at or time.monotonic() + DEADLINE)
        if heard is None and at is None:
            raise Broken(f"no rank began to {phase} within {DEADLINE:g} s")
        if heard is None:
            break
        rank, event, _ = heard
        if at is None and event == begin and len(rank.all(begin)) > passed:
            at = time.monotonic() + chance.uniform(0, 1.2 * took)
    victims = chance.sample(job.running, min(len(job.running), chance.randint(1, 3)))
    for rank in victims:
        rank.process.kill()
    return time.monotonic() if victims else None


def outlive(job, struck, layout):
    """Waits for the end of the ranks that were not killed. Seconds it took. Broken at the deadline."""
    while job.running:
        if job.hear(struck + DEADLINE) is None:
            left = [rank.number for rank in job.running]
            raise Broken(f"layout {layout}: ranks {left} still run {DEADLINE:g} s after others were killed")
    return time.monotonic() - struck


def one_job(root, chance, ledger, phase, worlds, patience):
    """A job that is struck in the phase. False if it ended before."""
    layout = chance.choice(worlds)
    settings = Settings(root, layout, max([0, *ledger.offered]) + 3, save_every=1, digests=True, host_memory="32MiB",
                        timeout=patience)  # fmt: skip
    with Job(layout.world, train, settings) as job:
        struck = strike(job, chance, phase, ledger.took[phase])
        if struck:
            seconds = outlive(job, struck, layout)
            ledger.kills[phase] += 1
            ledger.ended = max(ledger.ended, seconds)
            print(f"{sum(ledger.kills.values())} {phase}, {layout}: survivors ended in {seconds:.1f} s", flush=True)
        ledger.learn(job)
    return bool(struck)


def run(root, kills, seed, worlds=WORLDS, patience=PATIENCE):
    """A Ledger after so many kills, half of them in saves. Raises Broken."""
    chance, ledger = random.Random(seed), Ledger()
    first = Settings(root, worlds[0], 1, digests=True, host_memory="32MiB", timeout=patience)
    with Job(first.layout.world, train, first) as job:
        ledger.learn(job.finish(DEADLINE))
    jobs = 0
    while sum(ledger.kills.values()) < kills:
        if (jobs := jobs + 1) > 3 * kills + 5:
            raise Broken(f"{jobs} jobs for {kills} kills: they end before a rank is killed")
        phase = "save" if ledger.kills["save"] <= ledger.kills["restore"] else "restore"
        one_job(root, chance, ledger, phase, worlds, patience)
    last = Settings(root, worlds[0], 0, digests=True, host_memory="32MiB", timeout=patience)
    with Job(last.layout.world, train, last) as job:
        ledger.learn(job.finish(DEADLINE))
    return ledger


def main():
    parser = argparse.ArgumentParser(prog="cairn_bench.reconfigure.faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--kills", type=int, default=50, help="default: 50")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--dir", help="where the root is made; default: the system's folder for temporary files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-", dir=args.dir) as folder:
        try:
            ledger = run(f"{folder}/run", args.kills, args.seed)
        except Broken as promise:
            print(f"seed {args.seed}: {promise}", file=sys.stderr)
            return 1
    kills = ", ".join(f"{count} in a {phase}" for phase, count in ledger.kills.items())
    print(f"{kills}; {ledger.restored} restores compared, none mixed; survivors ended within {ledger.ended:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
