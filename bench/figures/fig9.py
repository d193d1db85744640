"""Figure 9: goodput against the checkpoint interval, with the failures of a spot cluster's trace, by real kills.

Each run replays the trace, compressed in time: bench_training is killed with SIGKILL at each failure and started again at
once (goodput.py). For each repetition and interval the strategies follow one another, in the opposite order every other
time, so that each is compared with its neighbour in time. Beside what was measured stands what the models make of the
same run's iteration time, write time, restart time and failures (goodput_model.py): PCcheck's published one, the exact
one, and the exact one walked failure by failure.

--scale shrinks state and iteration time alike, and with them everything but what a restart takes beyond reading the
state; --compress shrinks the time between failures. What counts is how the three stand to one another: the mean time
between failures in iterations, and in restarts. Both are printed and in the CSV, the second with a warning where failures
come faster than a training could be started five times. --limit replays only the first part of the trace.

The default is about 11 minutes for five strategies at four intervals. Interrupted, the CSV keeps the runs that were whole,
and its head says "partial"; no process and no other file is left.
"""

import argparse
import csv
import datetime
import io
import os
import platform
import shlex
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench/support")]

import goodput
import goodput_model
import spot_trace
from report import interval as median_interval

PROGRAM = os.path.join(os.environ.get("CAIRN_BIN", os.path.join(ROOT, "build/release/bin")), "bench_training")
STRATEGIES = ("sync", "checkfreq", "gpm", "pccheck", "cairn")
LEAST_RESTARTS = 5  # Of which one should fit between two failures.
PACE_ITERATIONS = 300  # That tell how fast a training without checkpoints is.


class Refused(Exception):
    """The runs cannot be made; the message says why."""


class Skipped(Refused):
    """This machine cannot do what was asked for."""


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/figures 9", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=["9"])
    parser.add_argument("--model", default="vgg16", help="a shape that bench_training knows; default: vgg16")
    parser.add_argument("--scale", type=positive(float), default=1 / 16, help="of state and time; default: 1/16")
    parser.add_argument(
        "--intervals", type=list_of(positive(int)), default=[10, 25, 50, 100], help="iterations, by comma"
    )
    parser.add_argument("--strategies", type=list_of(str), default=list(STRATEGIES), help="by comma; none, too")
    parser.add_argument("--in-flight", type=positive(int), default=2, help="for who can; default: 2")
    parser.add_argument("--repetitions", type=positive(int), default=1)
    parser.add_argument("--trace", default=os.path.relpath(spot_trace.SPOT_GPUS), help="default: bench/data's")
    parser.add_argument(
        "--compress", type=positive(float), default=200, help="seconds of the trace in one; default: 200"
    )
    parser.add_argument("--limit", type=positive(float), default=6741, help="seconds of the trace; default: its half")
    parser.add_argument("--disk", default="machine", help="or pd-ssd: a cgroup's limit")
    parser.add_argument("--disk-bytes-per-second", type=positive(int), help="an emulated disk; default: the machine's")
    parser.add_argument(
        "--pcie-bytes-per-second", type=positive(float), help="emulated link; default: bench_training's"
    )
    parser.add_argument("--dir", help="where checkpoints are written; default: build/bench")
    parser.add_argument("--output", help="without .csv and .png; default: bench/results/figure9")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw what is in the CSV")
    args = parser.parse_args(arguments)
    args.output = args.output or os.path.join(ROOT, "bench/results/figure9")
    args.dir = os.path.abspath(args.dir or os.path.join(ROOT, "build/bench"))
    return args


def positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected more than 0, found {text}")
        return value

    return convert


def list_of(kind):
    return lambda text: [kind(one) for one in text.split(",")]


def main(arguments):
    """Returns the exit code: 0, 2 for what is refused, 77 where the disk profile cannot be had, 130 interrupted."""
    args = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not args.draw:
            measure(args)
        draw(args)
    except (Refused, spot_trace.BadTrace) as reason:
        print(f"figures: {reason}", file=sys.stderr)
        return 77 if isinstance(reason, Skipped) else 2
    except KeyboardInterrupt:
        print("figures: interrupted; what was measured is kept, marked as partial", file=sys.stderr)
        return 130
    return 0


def measure(args):
    os.makedirs(args.dir, exist_ok=True)
    trace = spot_trace.read(args.trace)
    until = min(args.limit, trace.seconds[-1])
    failures = [at / args.compress for at in spot_trace.failures(trace) if at < until]
    if not failures:
        raise Refused(f"--limit {args.limit:g}: expected a failure in these seconds of {args.trace}, found none")
    end = until / args.compress
    for strategy in args.strategies:
        bench_training(args, strategy, "--check")
    first = ideal_row(args)

    runs = len(args.strategies) * len(args.intervals) * args.repetitions
    mtbf = end / len(failures)
    table = Table(args.output + ".csv", runs)
    table.note(machine_facts(args.dir))
    table.note(f"emulated: {first['emulated']}; disk: {first['disk']}")
    table.note(
        f"{os.path.basename(args.trace)}: {until:g} s in {end:.4g}, {len(failures)} failures, one in {mtbf:.3g} s, which "
        f"is {mtbf / float(first['iteration_seconds']):.0f} iterations"
    )
    print("\n".join(table.head), f"{runs} runs, about {runs * (end + 1) / 60:.0f} minutes", sep="\n", flush=True)
    table.write()
    for repetition in range(args.repetitions):
        for every in args.intervals:
            ideal = ideal_row(args, first["update_seconds"])
            for strategy in args.strategies[:: -1 if repetition % 2 else 1]:
                row = {"repetition": repetition, **one(args, strategy, every, ideal, failures, end)}
                table.add(row)
                tell(row)


def one(args, strategy, every, ideal, failures, end):
    """The row of one run."""
    options = ["--every", str(every), "--iterations", str(every + int(2 * end / float(ideal["iteration_seconds"])))]
    command = [*command_of(args, strategy), *options, "--update-seconds", ideal["update_seconds"]]
    try:
        outcome = goodput.replay(command, args.dir, failures, end)
    except goodput.Failed as reason:
        raise Refused(f"{strategy} every {every}: {reason}") from None
    costs = goodput.costs(outcome, every, 1 / float(ideal["iterations_per_second"]), args.in_flight)
    row = {
        "goodput": outcome.goodput,
        "ideal": goodput_model.ideal(costs, failures, end),
        "published": goodput_model.published(strategy, costs, outcome.failures, outcome.seconds),
        "exact": goodput_model.exact(costs, outcome.failures, outcome.seconds),
        "walked": goodput_model.walked(costs, outcome.failures, outcome.seconds),
        "seconds": outcome.seconds,
        "reached": outcome.reached,
        "ideal_iteration_s": costs.ideal_iteration,
        "iteration_s": costs.iteration,
        "write_s": costs.write,
        "exposed_s": costs.exposed,
        "restart_s": costs.restart,
        "lost_iterations": sum(outcome.lost) / max(1, len(outcome.lost)),
        "failures": len(outcome.failures),
        "killed_starting": outcome.killed_starting,
        "restarts_between": outcome.seconds / len(outcome.failures) / max(costs.restart, 1e-9),
    }
    settings = {name: ideal[name] for name in ("model", "disk", "state_bytes", "scale", "iteration_seconds")}
    return {"strategy": strategy, "every": every, **settings, "in_flight": args.in_flight, **row}


def tell(row):
    print(
        f"{row['strategy']:10} every {row['every']:3}: {row['goodput']:7.2f}/s; exact {row['exact']:7.2f}, walked "
        f"{row['walked']:7.2f}, ideal {row['ideal']:7.2f}; iteration {1000 * row['iteration_s']:.2f} ms, exposed "
        f"{row['exposed_s']:.3f} s, restart {row['restart_s']:.3f} s, a failure in {row['restarts_between']:.1f} of it",
        flush=True,
    )
    if row["restarts_between"] < LEAST_RESTARTS:
        print(
            f"  warning: expected time for {LEAST_RESTARTS} restarts or more between two failures, found "
            f"{row['restarts_between']:.1f}: what is measured is starting; a smaller --compress or --scale helps",
            flush=True,
        )


def command_of(args, strategy):
    command = [PROGRAM, "--strategy", strategy, "--model", args.model, "--scale", repr(args.scale)]
    command += ["--in-flight", str(args.in_flight), "--disk", args.disk]
    for option in ("disk_bytes_per_second", "pcie_bytes_per_second"):
        if (value := getattr(args, option)) is not None:
            command += ["--" + option.replace("_", "-"), str(value)]
    return command


def bench_training(args, strategy, *options):
    """What bench_training prints. Its own word for why it does not, where it does not."""
    command = [*command_of(args, strategy), "--dir", args.dir, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise (Skipped if done.returncode == 77 else Refused)(done.stderr.strip() or f"{shlex.join(command)} failed")
    return done.stdout


def ideal_row(args, update_seconds="0"):
    """The row of a training without checkpoints or failures."""
    options = ["--iterations", str(PACE_ITERATIONS), "--update-seconds", update_seconds]
    return next(csv.DictReader(io.StringIO(bench_training(args, "none", *options))))


def machine_facts(directory):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    filesystem = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=True)
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return (
        f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}, "
        f"{filesystem.stdout.strip()}; commit {commit.stdout.strip() or 'unknown'}"
    )


def draw(args):
    """The picture of what is in the CSV, and how the strategies compare there."""
    import fig9_plot  # Here: matplotlib is for who draws.

    if not os.path.exists(args.output + ".csv"):
        raise Refused(f"{args.output}.csv: there is no such file; run without --draw")
    head, rows = read_table(args.output + ".csv")
    if not rows:
        raise Refused(f"{args.output}.csv: no run is in it")
    for every in sorted({row["every"] for row in rows}):
        goodput_of = {(row["strategy"], row["repetition"]): row["goodput"] for row in rows if row["every"] == every}
        for strategy in dict.fromkeys(row["strategy"] for row in rows):
            mine = [row for row in rows if row["every"] == every and row["strategy"] == strategy]
            words = [
                f"{strategy:10} every {every:3.0f}",
                told("iterations/s", [row["goodput"] for row in mine]),
                told("of ideal", [row["goodput"] / row["ideal"] for row in mine]),
                told("of exact", [row["goodput"] / row["exact"] for row in mine if row["exact"]]),
            ]
            pairs = [(goodput_of.get(("cairn", row["repetition"])), row["goodput"]) for row in mine]
            if strategy != "cairn":
                words.append(told("cairn's of it", [ours / theirs for ours, theirs in pairs if ours and theirs]))
            print("; ".join(filter(None, words)))
    fig9_plot.draw(head, rows, args.output + ".png")
    print(f"wrote {os.path.relpath(args.output)}.csv and .png")


def told(name, values):
    if not values:
        return ""
    median, low, high = median_interval(values)
    return f"{name} {median:.4g}" + (f" [{low:.4g}, {high:.4g}]" if len(values) > 1 else "")


class Table:
    """The figure's CSV: whole on the disk after every row. Its head's lines begin with "#"; the last one of them says
    "complete", or "partial: n of m runs"."""

    def __init__(self, path, runs):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        self.path, self.runs, self.rows = path, runs, []
        self.head = [f"{now}; {shlex.join(['scripts/figures', *sys.argv[1:]])}".replace(ROOT + "/", "")]

    def note(self, text):
        self.head.append(text)

    def add(self, row):
        self.rows.append({name: f"{cell:.6g}" if isinstance(cell, float) else cell for name, cell in row.items()})
        self.write()

    def write(self):
        state = "complete" if len(self.rows) == self.runs else f"partial: {len(self.rows)} of {self.runs} runs"
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".new", "w", newline="") as file:
            file.writelines(f"# {line}\n" for line in (*self.head, state))
            if self.rows:
                writer = csv.DictWriter(file, self.rows[0], lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)
        os.replace(self.path + ".new", self.path)


def read_table(path):
    """(head, rows); what is a number is one, and an empty cell is None."""
    with open(path, newline="") as file:
        lines = file.read().splitlines(keepends=True)
    head = [line[2:].rstrip("\n") for line in lines if line.startswith("# ")]
    rows = csv.DictReader(line for line in lines if not line.startswith("# "))
    return head, [{name: number(cell) for name, cell in row.items()} for row in rows]


def number(cell):
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
