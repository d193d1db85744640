"""A job that goes through layouts one after the other: it trains, saves, ends, and goes on under the next layout."""

import dataclasses
from dataclasses import dataclass

from .jobs import Job
from .layout import Layout
from .train import train


class Differs(AssertionError):
    """A tensor was not restored as it was saved. Names the tensors."""


@dataclass
class Reconfiguration:
    """Seconds of the slowest rank in each part, one after the other."""

    step: int
    before: Layout
    after: Layout
    save: float  # From the call until durable on all ranks.
    start: float  # The old processes end; new ones start, meet, and make the model and the optimizer's state.
    plan: float  # The checkpoint's metadata, and who reads what.
    read: float
    tensors: int  # Equal, bit by bit, before and after.


@dataclass
class Run:
    losses: dict  # By step.
    reconfigurations: list


def replay(settings, parts, seconds=600.0):
    """Runs [(layout, steps)] in `settings.root`, each within the seconds. Raises jobs.Failed, Differs."""
    run, saved, done, last = Run({}, []), None, 0, None
    for layout, steps in parts:
        done += steps
        mine = dataclasses.replace(settings, layout=layout, steps=done, digests=True)
        with Job(layout.world, train, mine) as job:
            job.finish(seconds)
        run.losses |= {told["step"]: told["loss"] for told in job.all("loss")}
        if saved is not None:
            run.reconfigurations.append(_between(saved, last, job, layout))
        saved, last = job, layout
    return run


def _between(saved, before, restored, after):
    (was,), (now,) = (of.all(event) for of, event in ((saved, "saves"), (restored, "holds")))
    wrong = [name for name in was["digests"] | now["digests"] if was["digests"].get(name) != now["digests"].get(name)]
    if wrong or was["step"] != now["step"]:
        raise Differs(
            f"{before} to {after}: saved step {was['step']}, restored step {now['step']}; "
            f"{len(wrong)} tensors differ: {', '.join(wrong[:5])}"
        )
    durable = max(told["at"] for told in saved.all("durable"))
    return Reconfiguration(
        step=was["step"],
        before=before,
        after=after,
        save=durable - min(told["at"] for told in saved.all("saving")),
        start=max(told["at"] for told in restored.all("ready")) - durable,
        plan=max(told["plan"] for told in restored.all("restored")),
        read=max(told["read"] for told in restored.all("restored")),
        tensors=len(was["digests"]),
    )
