"""A job's iterations on DT-FM's networks, beside what its cost model says: does the order of devices agree?

Eight devices of each network, spread over its locations, are eight ranks in network namespaces, with the delays and rates of the
case between them (shared/nodes.py; needs root and iproute2). A GPT trains on them in 4 stages of 2 replicas, in the order that
`cairn place` finds and in a random one, and as a pipeline of 8 stages in the published order. Bytes are few, and rates smaller by as
much, so that a transfer takes as long as that of DT-FM's GPT-3 XL; --faster divides all of the network's times. The model's cost is
that of the order as it is. Needs torch; takes ten minutes.
Writes groups.csv.
"""

import itertools
import random
import sys
import time

from ..figures.networks import devices_of, place, published
from ..shared import files
from ..shared.nodes import Nodes, Unavailable
from ..shared.options import add_directory, add_record, positive, some_of
from ..shared.report import Report
from .jobs import Job
from .layout import Layout
from .sizes import sizes_of
from .train import Settings, join

CASES = {1: 4, 3: 2, 5: 8}  # And over how many locations its devices are spread.
DEVICES, REPLICAS = 8, 2
# As the table names them.
ORDERS = {"found": "that of cairn place, 4 stages", "random": "random, 4 stages", "pipeline": "as published, 8 stages"}
MEASURED, MODELLED = "iteration s", "model s"
MODEL, SAMPLES, MICRO_BATCHES = (
    "gpt3-xl/64",
    208,
    8,
)  # Of both replicas; of each. As many as make DT-FM's ratio of bytes.
WARM_UP = 1  # Iterations, in which ranks connect.


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    parser.add_argument("--iterations", type=positive(int), default=3, help="of each order; default: 3")
    parser.add_argument("--faster", type=positive(float), default=4, help="the network, in all its times; default: 4")
    about = f"of {', '.join(map(str, CASES))}, by comma; default: all"
    parser.add_argument("--cases", type=some_cases, default=list(CASES), help=about)
    parser.set_defaults(evaluations=None, timeout=1800)


def some_cases(text):
    return [int(one) for one in some_of(list(map(str, CASES)))(text)]


def bytes_of(replicas):
    """Of a stage's gradients with four stages; and what a replica sends to the next stage in an iteration."""
    sizes = sizes_of(MODEL)
    layer = 12 * sizes.hidden**2 + 13 * sizes.hidden
    return sizes.layers // (DEVICES // REPLICAS) * layer * 4, SAMPLES // replicas * sizes.positions * sizes.hidden * 4


class Network:
    """Eight devices of a case, and links[a][b] between them: (delay in s, bytes per second). Transfers take as long as those of
    the published bytes, and all is so many times faster."""

    def __init__(self, case, parameters, faster):
        self.title = case["title"].split(":")[0]
        step = len(case["locations"]) // CASES[case["case"]]
        names = [one["name"] for one in case["locations"][::step]]
        known = devices_of(case)
        each = DEVICES // CASES[case["case"]]
        self.devices = [device for at in names for device in [one for one in known if one[1] == at][:each]]
        pairs = {frozenset(pair[:2]): pair[2:] for pair in case.get("pairs", [])}
        fewer = bytes_of(REPLICAS)[0] / (parameters["g_gigabytes"] * 1e9)

        def link(a, b):
            same = case["within"] if a == b else case.get("across")
            delay, rate = (same["delay_ms"], same["bandwidth_gbps"]) if same else pairs[frozenset((a, b))]
            return delay / 1e3 / faster, rate * 1e9 / 8 * fewer * faster

        self.links = [[link(a, b) for _, b in self.devices] for _, a in self.devices]

    def topology(self):
        """As `cairn place` reads it."""
        gradients, activations = bytes_of(REPLICAS)
        return {
            "devices": [{"name": name, "domain": at} for name, at in self.devices],
            "delay_ms": [[1e3 * delay for delay, _ in row] for row in self.links],
            "bytes_per_second": [[rate for _, rate in row] for row in self.links],
            "stages": DEVICES // REPLICAS, "gradient_bytes": gradients, "activation_bytes": activations,
        }  # fmt: skip

    def orders(self, args):
        """{order: stages of devices}"""
        numbers = {name: number for number, (name, _) in enumerate(self.devices)}
        mixed = random.Random(1).sample(range(DEVICES), DEVICES)
        return {
            "found": [[numbers[name] for name in stage] for stage in place(args, self.topology())["stages"]],
            "random": [mixed[at : at + REPLICAS] for at in range(0, DEVICES, REPLICAS)],
            "pipeline": [[device] for device in range(DEVICES)],
        }

    def cost(self, stages):
        """DT-FM's, in seconds, of this order of stages, whose device i has replica i."""
        gradients, activations = bytes_of(len(stages[0]))

        def edge(a, b, count):
            delay, rate = self.links[a][b]
            return delay + count / rate

        data = max(
            sum(2 * edge(one, other, gradients / len(stage)) for other in stage if other != one)
            for stage in stages
            for one in stage
        )
        borders = itertools.pairwise(stages)
        return data + 2 * sum(max(edge(a, b, activations) for a, b in zip(*pair, strict=True)) for pair in borders)


def settings_of(stages):
    """Every order trains on the same samples, in as many micro-batches."""
    replicas = len(stages[0])
    return Settings("", Layout(len(stages), 1, replicas), 0, model=MODEL, batch=SAMPLES,
                    micro_batch=SAMPLES // replicas // MICRO_BATCHES)  # fmt: skip


def iterate(settings, iterations, tell):
    """One rank: tells when each iteration has begun and ended."""
    import torch
    import torch.distributed as dist

    from .parallel import Trainer

    torch.set_num_threads(1)
    device, group = join(settings.timeout)
    trainer = Trainer(settings, device)
    trainer.initialize()
    steps = []
    for number in range(WARM_UP + iterations):
        dist.barrier(group)
        begin = time.monotonic()
        trainer.step(number + 1)
        steps.append((begin, time.monotonic()))
    tell("steps", steps=steps[WARM_UP:])
    dist.barrier(group)  # So that none leaves a connection that another one still uses.
    dist.destroy_process_group()


def go(args, report):
    known = published("dtfm.json")
    for case in (one for one in known["cases"] if one["case"] in args.cases):
        network = Network(case, known["parameters"], args.faster)
        for order, stages in network.orders(args).items():
            with Nodes(network.links) as nodes, Job(DEVICES, iterate, settings_of(stages), args.iterations,
                                                    on=(nodes, [*itertools.chain(*stages)])) as job:  # fmt: skip
                job.finish(args.timeout)
            measure = f"{network.title}, {order}"
            report.single(measure, 0, MODELLED, network.cost(stages))
            for number, ranks in enumerate(zip(*(told["steps"] for told in job.all("steps")), strict=True)):
                seconds = max(end for _, end in ranks) - min(begin for begin, _ in ranks)
                report.single(measure, number, MEASURED, seconds)
                print(f"{measure:44} {seconds:7.2f} s, by the model {network.cost(stages):7.2f} s", flush=True)


def run(args):
    head = files.begun(args.dir)
    report = Report(args.folder)
    try:
        with report.kept("groups", head):
            go(args, report)
    except Unavailable as reason:
        print(f"scripts/bench groups: {reason}", file=sys.stderr)
        return 2
    report.write("groups", [*head, f"network: {args.faster:g} times as fast as published"])
    return 0
