"""What goodput should be: useful iterations a second of wall time, failures and restarts included.

Two models and an exact count. All of them are given what was measured (Costs) and compute the goodput.

published   PCcheck's own (artifact_evaluation/evaluation/throughput/run_goodput_model.py). Each failure costs what has
            to be done again. By strategy, with f iterations between checkpoints, t the time of one without checkpoints,
            Tw the time to write one, N in flight, and the time to load one:
                CheckFreq, Gemini   f t + load
                GPM                 f t / 2 + load
                PCcheck             f t / 2 + load + t min(Tw / t, f N) / 2
            sync and torch-save wait as GPM does and get its line; Cairn gets PCcheck's, also in memory. CheckFreq's is the worst case,
            the others' are means. Half of Tw is neither: a state that is being written is of no use until it is
            durable.

exact       Each failure costs tau / 2 + exposed + restart.

    Let tau = f t' be the wall time from one checkpoint to the next, with t' the measured time of an iteration, stalls
    included. A run that starts from the state of step s starts where Save(s) would have returned. It is at s + f when
    Save(s + f) returns, tau later, and at s + n f after n tau. That state is durable `exposed` later: Tw less the time
    that training stood still in Save. So a failure after the time L finds the newest durable step
        s + f floor((L - exposed) / tau),
    and L / t' iterations were computed. If L is equally likely anywhere between two checkpoints, the mean loss is
        exposed + tau / 2
    in wall time at the rate 1 / t'. Then comes the restart, from the failure to the begin of the first iteration.

    sync, gpm   Save returns when the state is durable: exposed = 0. The stall is in tau, and a failure during it loses
                the whole interval before, which is what the mean over tau says.
    checkfreq   Save waits for the persist before (the stall is in tau), starts the snapshot, returns: exposed is copy
                and persist.
    pccheck     the same, with a wait only when N are under way: exposed is longest where several share the disk.
    cairn       Save returns at once: exposed = Tw. In memory, where "durable" is what survives the process, too.
    none        nothing is ever durable: exposed is infinite.

    No failure can cost more than the time since the one before it, and no interrupted restart more than it took. The
    work after the last failure is not lost.

walked The same without the mean: the floor above, for each of the trace's failures. If few intervals fit between two
failures it is more precise than the mean. It is not smooth.
"""

import math
from typing import NamedTuple


class Costs(NamedTuple):
    """What was measured of one strategy at one interval, in seconds."""

    every: int  # Iterations between checkpoints.
    ideal_iteration: float  # Without checkpoints.
    iteration: float  # With them, stalls included.
    write: float  # From the call of Save until the state is durable. Infinite if none ever was.
    exposed: float  # From Save's return until then.
    restart: float  # From a failure until the first iteration begins.
    in_flight: int = 1


def published(strategy, costs, failures, end):
    """Iterations a second by PCcheck's model, with `failures` (times) in `end` seconds. None if it has no line."""
    interval = costs.every * costs.ideal_iteration
    redo = {
        "checkfreq": interval,
        "gemini": interval,
        "gpm": interval / 2,
        "sync": interval / 2,
        "torch-save": interval / 2,
        "pccheck": interval / 2 + min(costs.write, interval * costs.in_flight) / 2,
    }
    redo["cairn"] = redo["cairn-memory"] = redo["pccheck"]
    if strategy not in redo:
        return None
    return max(0.0, (end - len(failures) * (redo[strategy] + costs.restart)) / costs.iteration / end)


def exact(costs, failures, end):
    """Iterations a second that are left on average."""
    lost = costs.every * costs.iteration / 2 + costs.exposed
    *killed, last = _lives(costs, failures, end)
    return (sum(max(0.0, life - lost) for life in killed) + last) / costs.iteration / end


def walked(costs, failures, end):
    """Iterations a second that are left after exactly these failures."""
    interval = costs.every * costs.iteration
    *killed, last = _lives(costs, failures, end)
    saved = sum(max(0, math.floor((life - costs.exposed) / interval)) for life in killed if costs.exposed < math.inf)
    return (saved * interval + last) / costs.iteration / end


def ideal(costs, failures, end):
    """Iterations a second if checkpoints at that interval and restarts took no time: half an interval is lost."""
    return exact(costs._replace(iteration=costs.ideal_iteration, exposed=0.0, restart=0.0), failures, end)


def _lives(costs, failures, end):
    """How long each process trains: until each failure, and until the end. The first start takes no time."""
    begins = [0.0, *(at + costs.restart for at in failures)]
    return [max(0.0, until - begin) for begin, until in zip(begins, [*failures, end])]
