"""DT-FM's five networks of 64 devices in 8 stages: what `cairn place` finds, and the published times beside it.

Each network is placed as it is published, and then with its devices listed in a random order, from which the simple
orders know nothing. The costs of three assignments are held against golden ones that were computed independently; a
difference ends the figure, and so does a search that is worse than the better simple order. The published table of
efficiency is recomputed from its times. bench/data/README.md has the sources. Takes half a minute.
"""

import json
import os
import random
import statistics
import subprocess
import tempfile

from ..shared import ROOT, WORK, program
from ..shared.options import add_directory, positive
from .runs import Refused, Table, grouped

PROGRAM = program("cairn")
DATA = os.path.join(ROOT, "bench/data")
SIMPLE = ("contiguous", "one_per_block")
CLOSE = 1e-9  # Seconds. The golden costs have twelve decimals.
# As tables and pictures name them.
ORDERS = {"contiguous": "contiguous", "one_per_block": "one stage per block", "random": "random", "found": "found"}
SETTINGS = {"megatron_p8": "Megatron", "dtfm_unscheduled": "DT-FM, random ranks", "dtfm_scheduled": "DT-FM, scheduled"}


def add_arguments(parser):
    add_directory(parser)
    parser.add_argument("--orders", type=positive(int), default=5, help="random orders of each network; default: 5")
    about = "how many placements a search prices; default: that of cairn place"
    parser.add_argument("--evaluations", type=positive(int), help=about)
    parser.set_defaults(device="emulated", dilation=1, usual_dilation=1)


def published(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return json.load(file)


# Topologies, as cairn place reads them.


def job_of(parameters):
    return {
        "stages": parameters["stages"],
        "gradient_bytes": parameters["g_gigabytes"] * 1e9,
        "activation_bytes": parameters["a_gigabytes"] * 1e9,
    }


def devices_of(case):
    """[(name, location)] in the published order, with the names that cairn place gives them."""
    found = []
    for one in case["locations"]:
        name, count = one["name"], one["count"]
        found += [(name if count == 1 else f"{name}/{index}", name) for index in range(count)]
    return found


def by_location(case, parameters):
    """The network as it is published; its present placement is the scrambled assignment of the golden costs."""
    devices = devices_of(case)
    scrambled = [devices[(37 * k + 11) % len(devices)][0] for k in range(len(devices))]
    stages = parameters["stages"]
    each = len(devices) // stages
    topology = {
        "locations": [{"name": one["name"], "count": one["count"]} for one in case["locations"]],
        "within": case["within"],
        **job_of(parameters),
        "current": [scrambled[each * p : each * (p + 1)] for p in range(stages)],
    }
    if "across" in case:
        return {**topology, "across": case["across"]}
    pairs = [{"between": [a, b], "delay_ms": delay, "bandwidth_gbps": rate} for a, b, delay, rate in case["pairs"]]
    return {**topology, "pairs": pairs}


def by_device(case, parameters, seed):
    """The same network, with its devices in a random order and a number for each pair of them."""
    devices = devices_of(case)
    random.Random(seed).shuffle(devices)
    links = {frozenset(pair[:2]): {"delay_ms": pair[2], "bandwidth_gbps": pair[3]} for pair in case.get("pairs", [])}

    def matrix(of):
        return [
            [
                None if a == b else (case["within"] if x == y else case.get("across") or links[frozenset((x, y))])[of]
                for b, (_, y) in enumerate(devices)
            ]
            for a, (_, x) in enumerate(devices)
        ]

    return {
        "devices": [{"name": name, "domain": location} for name, location in devices],
        "delay_ms": matrix("delay_ms"),
        "bandwidth_gbps": matrix("bandwidth_gbps"),
        **job_of(parameters),
    }


def place(args, topology, seed=1):
    """What cairn place says: the placement of its JSON."""
    with tempfile.TemporaryDirectory(prefix="figures-", dir=args.dir) as folder:
        path = os.path.join(folder, "topology.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(topology, file)
        command = [PROGRAM, "place", path, "--json", "--seed", str(seed)]
        command += ["--evaluations", str(args.evaluations)] if args.evaluations else []
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode != 0:
        raise Refused(f"cairn place: {ran.stderr.strip()}")
    return json.loads(ran.stdout)["placement"]


# Rows.


def price_row(case, order, cost, seed="", golden=""):
    names = ("data_seconds", "pipeline_seconds", "total_seconds")
    return {"network": case["title"].split(":")[0], "order": order, "seed": seed,
            **{name: cost[name] for name in names}, "golden_seconds": golden}  # fmt: skip


def check_golden(case, order, cost, golden):
    """The published total; Refused if any part differs."""
    for name, expected in zip(("data_seconds", "pipeline_seconds", "total_seconds"), golden, strict=True):
        if abs(cost[name] - expected) > CLOSE:
            raise Refused(f"network {case['case']}, {order}, {name}: expected {expected}, found {cost[name]}")
    return golden[-1]


def check_search(case, placement):
    best = min(placement[order]["total_seconds"] for order in SIMPLE)
    found = placement["found"]["total_seconds"]
    if found > best:
        raise Refused(f"network {case['case']}: expected a placement of at most {best} s, found {found}")


def prices(args, networks):
    golden = {(case, order): costs for case, order, *costs in networks["golden"]}
    for case in networks["cases"]:
        placement = place(args, by_location(case, networks["parameters"]))
        check_search(case, placement)
        placement["scrambled"] = placement["current"]
        for order in (*SIMPLE, "scrambled"):
            total = check_golden(case, order, placement[order], golden[case["case"], order])
            yield price_row(case, order, placement[order], golden=total)
        yield price_row(case, "found", placement["found"])
        for seed in range(args.orders):
            placement = place(args, by_device(case, networks["parameters"], seed), seed + 1)
            check_search(case, placement)
            yield price_row(case, "random", placement["contiguous"], seed)
            yield price_row(case, "found in random", placement["found"], seed)


def efficiencies(networks, times):
    """The published table beside what its times make of it: those of the first seed, or of the only run."""
    titles = {case["case"]: case["title"].split(":")[0] for case in networks["cases"]}
    for case in times["cases"]:
        seconds = {run["setting"]: [one[0] for one in run["seconds"]] for run in case["runs"]}
        for entry in case["efficiency"]:
            setting = entry["setting"]
            for at, ((layers, batch, pflop), value) in enumerate(zip(times["rows"], entry["value"], strict=True)):
                ours = round(pflop / seconds[setting][at], 3)
                if ours != value:
                    where = f"network {case['case']}, {setting}, {layers} layers, batch {batch}"
                    raise Refused(f"{where}: expected an efficiency of {value}, found {ours}")
                yield {"network": titles[case["case"]], "setting": setting, "layers": layers, "batch": batch,
                       "pflop": pflop, "iteration_seconds": seconds[setting][at], "published": value,
                       "recomputed": ours}  # fmt: skip


def measure(args):
    """Computes every row, and writes them only if all checks hold."""
    networks = published("dtfm.json")
    args.dir = args.dir or WORK
    os.makedirs(args.dir, exist_ok=True)
    table = Table(args.output + ".csv", args)
    for row in prices(args, networks):
        print(f"{row['network']:24} {row['order']:16} {row['total_seconds']:8.4f} s", flush=True)
        table.rows.append(row)
    table.rows += efficiencies(networks, published("dtfm-published.json"))
    table.write("complete")
    return 0


# What the rows say, for the table in the documents and for the picture.


def totals(rows):
    """{network: {order: [rows]}}"""
    found = {}
    for (network, order), group in grouped([row for row in rows if row["order"]], "network", "order").items():
        found.setdefault(network, {})[order] = group
    return found


def published_of(rows):
    """{network: {setting: [efficiency of each model and batch]}}"""
    found = {}
    for (network, setting), group in grouped([row for row in rows if row["setting"]], "network", "setting").items():
        found.setdefault(network, {})[setting] = [row["published"] for row in group]
    return found


def gains(settings):
    """Published: the efficiency with DT-FM's placement over that with random ranks, of each model and batch."""
    return [a / b for a, b in zip(settings["dtfm_scheduled"], settings["dtfm_unscheduled"], strict=True)]


def draw(plots, _, rows):
    figure, (costs, efficiency) = plots.pyplot.subplots(1, 2, figsize=(10, 4.4))
    greys = dict(zip(ORDERS, ("#d9d9d9", "#a6a6a6", "#6b6b6b", "#8b0000"), strict=True))
    networks = totals(rows)
    for index, (order, label) in enumerate(ORDERS.items()):
        at = [x + 0.2 * (index - 1.5) for x in range(len(networks))]
        groups = [group[order] for group in networks.values()]
        data = [statistics.median(row["data_seconds"] for row in group) for group in groups]
        whole = [statistics.median(row["total_seconds"] for row in group) for group in groups]
        costs.bar(at, whole, 0.18, color=greys[order], hatch="////", edgecolor="white", linewidth=0)
        costs.bar(at, data, 0.18, color=greys[order], label=label)
    costs.set_ylabel("modelled communication of an iteration (s)\nsolid: gradients, hatched: pipeline")
    published_by = published_of(rows)
    for index, (setting, label) in enumerate(SETTINGS.items()):
        at = [x + 0.25 * (index - 1) for x in range(len(published_by))]
        middles = [statistics.median(of[setting]) for of in published_by.values()]
        colour = list(greys.values())[index + (index == 2)]
        efficiency.bar(at, middles, 0.22, color=colour, label=label)
    efficiency.set_ylabel("published efficiency (PFlop/s)\nmedian of 9 models and batches")
    efficiency.legend(fontsize=7)
    for axes, names in ((costs, networks), (efficiency, published_by)):
        axes.set_xticks(range(len(names)), [name.replace(" of ", "\nof ").replace(", ", ",\n") for name in names])
        axes.tick_params(axis="x", labelsize=7)
    return figure, "DT-FM's networks: 64 devices in 8 stages"
