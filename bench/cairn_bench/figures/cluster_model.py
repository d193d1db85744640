"""A cluster of one-GPU jobs whose need of cores and memory is known: what of a node's host can be taken.

The jobs' sensitivity is Synergy's (OSDI 2022, bench/data/synergy.json): throughput for so many cores and so much
memory, relative to a proportional share of the node. Between its points throughput is linear in cores, and the time of
an iteration linear in memory, as `cairn profile` has it.
"""

import bisect
import dataclasses
import functools
import json
import operator
import os
import random

from ..shared import ROOT

DATA = os.path.join(ROOT, "bench", "data", "synergy.json")
STEPS = 60  # Bisections.
# Synergy's classes of jobs.
TASKS = {
    "image": ("alexnet", "mobilenet", "res18", "res50", "shufflenet"),
    "language": ("bert", "gnmt", "lstm", "transformer"),
    "speech": ("deepspeech", "m5", "vae"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    name: str
    cpus: tuple
    memory: tuple
    throughput: tuple
    demand: tuple  # Cores and GB.

    def speed(self, cpus, memory):
        """Between the points; below the fewest cores proportional, below the least memory as there."""
        return _speed(self, cpus, memory)

    def least(self, cpus, memory):
        """The fewest cores and the least memory that keep the speed of this share."""
        return _least(self, cpus, memory)


@functools.cache
def _speed(model, cpus, memory):
    rows = [_between(model.memory, row, memory, inverse=True) for row in model.throughput]
    return _between((0, *model.cpus), (0, *rows), cpus)


@functools.cache
def _least(model, cpus, memory):
    wanted = model.speed(cpus, memory) * (1 - 1e-9)
    fewest = _lowest(cpus, lambda less: model.speed(less, memory) >= wanted)
    least = _lowest(memory, lambda less: model.speed(fewest, less) >= wanted, model.memory[0])
    return fewest, least


def _between(xs, ys, x, inverse=False):
    """Linear in x, or 1 / y is; constant beyond the ends."""
    at = bisect.bisect_right(xs, x)
    if at == 0 or at == len(xs):
        return ys[max(0, at - 1)]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    low, high = ys[at - 1], ys[at]
    return 1 / (1 / low + share * (1 / high - 1 / low)) if inverse else low + share * (high - low)


def _lowest(high, holds, low=0.0):
    """The lowest value that holds; high does, and what is above one that holds does."""
    if holds(low):
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclasses.dataclass(frozen=True)
class Server:
    gpus: int
    cpus: float
    memory: float


def load(path=DATA):
    """(server, {name: Model})."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    server = Server(data["server"]["gpus"], data["server"]["cpus"], data["server"]["memory_gb"])
    models = {}
    for name, of in data["models"].items():
        demand = of["demand"]["cpus"], of["demand"]["memory_gb"]
        rows = tuple(map(tuple, of["throughput"]))
        models[name] = Model(name, tuple(of["cpus"]), tuple(of["memory_gb"]), rows, demand)
    return server, models


def draw_jobs(models, count, mix, seed):
    """`mix`: the share of each class, or none for every model alike."""
    chance = random.Random(seed)
    if not mix:
        return [models[chance.choice(sorted(models))] for _ in range(count)]
    classes = chance.choices(sorted(mix), [mix[one] for one in sorted(mix)], k=count)
    return [models[chance.choice(TASKS[one])] for one in classes]


@dataclasses.dataclass
class Node:
    """Its jobs, each with its share: [Model, cores, GB]."""

    server: Server
    jobs: list = dataclasses.field(default_factory=list)

    def free(self):
        return (
            self.server.cpus - sum(cpus for _, cpus, _ in self.jobs),
            self.server.memory - sum(memory for _, _, memory in self.jobs),
        )


def place_proportional(server, jobs):
    """Every job has its GPU's part of the node."""
    share = server.cpus / server.gpus, server.memory / server.gpus
    return [
        Node(server, [[model, *share] for model in jobs[at : at + server.gpus]])
        for at in range(0, len(jobs), server.gpus)
    ]


def place_tuned(server, jobs):
    """Synergy's tuning: every job gets what it demands where that fits, and never less speed than a fair share gives.

    The largest demands first, each to the node that has the least free of those that can hold it. If none can, the job
    gets a fair share, or less if it demands less, on the node that has the most free; and jobs there that have more than
    a fair share give back as much as it needs.
    """
    fair = server.cpus / server.gpus, server.memory / server.gpus
    nodes = [Node(server) for _ in range(-(-len(jobs) // server.gpus))]
    for model in sorted(jobs, key=lambda one: one.demand, reverse=True):
        open_nodes = [node for node in nodes if len(node.jobs) < server.gpus]
        fits = [node for node in open_nodes if all(map(operator.ge, node.free(), model.demand))]
        if fits:
            min(fits, key=Node.free).jobs.append([model, *model.demand])
            continue
        node = max(open_nodes, key=Node.free)
        share = tuple(map(min, model.demand, fair))
        for what in (0, 1):
            give_back(node, what, share[what], fair[what])
        node.jobs.append([model, *share])
    return nodes


def give_back(node, what, needed, fair):
    """The jobs with the most cores (0) or memory (1) give up what is missing, and none below a fair share."""
    for job in sorted(node.jobs, key=lambda one: one[1 + what], reverse=True):
        missing = needed - node.free()[what]
        if missing <= 0:
            return
        job[1 + what] -= min(missing, max(0.0, job[1 + what] - fair))


def budget(node):
    """(cores, GB) that can be taken of a node without slowing any of its jobs: what is free or not needed."""
    cpus, memory = node.free()
    for model, of_cpus, of_memory in node.jobs:
        fewest, least = model.least(of_cpus, of_memory)
        cpus += of_cpus - fewest
        memory += of_memory - least
    return cpus, memory


def slowest(node, taken, profiled):
    """The speed of the node's job that suffers most, of its speed before, when saves use `taken` cores.

    Profiled: first what nobody needs, then from all alike. Otherwise from all alike: threads that run anywhere.
    """
    spare = budget(node)[0] if profiled else 0.0
    if taken <= spare:
        return 1.0
    kept = {}
    for i, (model, cpus, memory) in enumerate(node.jobs):
        kept[i] = model.least(cpus, memory)[0] if profiled else cpus
    lost = min(1.0, (taken - spare) / sum(kept.values()))
    return min(
        model.speed(kept[i] * (1 - lost), memory) / model.speed(cpus, memory)
        for i, (model, cpus, memory) in enumerate(node.jobs)
    )
