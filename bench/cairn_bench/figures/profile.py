"""Throughput against cores and memory, by `cairn profile`: of three jobs, or of your own.

The jobs (training_job.py), a loader-bound one, a compute-bound one and one between, read records of a file, decode them
in one process for each core, and compute (a wait, as on a GPU). Each is profiled, with the file dropped from the page cache before each run, and then measured at budgets that the
profile does not have: how far off is the prediction? --profiles draws profile.json files instead. Fractions of a core are
quotas of CPU time, so this needs a control group that it may make; memory too. About three minutes; 64 MB of disk.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile

from ..shared import files, program
from ..shared.options import add_directory, some_of
from .runs import by

JOBS = ("loader", "mixed", "compute")
DATA_BYTES = 64 << 20
WARM_UP = 200  # Batches: until most records have been read once.
# Budgets that profiles of two cores do not measure by themselves.
CHECKS = {"cores": ("0.4", "0.7", "0.9", "1.3", "1.7"), "memory": ("36MiB", "56MiB", "80MiB")}
COLUMNS = ("job", "what", "cores", "memory_bytes", "throughput", "predicted", "knee_cores", "knee_memory_bytes",
           "full_memory_bytes", "peak_bytes", "worker_threads", "host_memory_bytes")  # fmt: skip


def add_arguments(parser):
    add_directory(parser)
    parser.add_argument("--only", type=some_of(JOBS), help=f"jobs, by comma: {', '.join(JOBS)}; default: all")
    parser.add_argument("--iterations", type=int, default=40, help="of each run; default: 40")
    parser.add_argument("--profiles", nargs="+", help="draw these profile.json files; measure nothing")


def job_command(job, data, *more):
    return [sys.executable, "-B", os.path.join(os.path.dirname(__file__), "training_job.py"), job, data, *more]


def profile(args, job, data, out):
    """Profiles the job. False if `cairn profile` failed; it has said why."""
    cores = os.sched_getaffinity(0)
    command = [program("cairn"), "profile", "--out", out, "--data", data, "--iterations", str(args.iterations)]
    command += ["--memory", "256MiB", "--least-memory", "16MiB", "--warm-up", str(WARM_UP)]
    for at in (*CHECKS["cores"], *(f"{len(cores)}:{memory}" for memory in CHECKS["memory"])):
        if float(at.split(":")[0]) <= len(cores):
            command += ["--check", at]
    process = subprocess.Popen([*command, "--", *job_command(job, data)], stdout=subprocess.DEVNULL)
    try:
        return process.wait() == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def rows_of(path, job):
    """The measured budgets of a profile.json, which `cairn profile` has checked."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        shared = {
            "job": job,
            "knee_cores": found["knee"]["cores"],
            "knee_memory_bytes": found["knee"]["memory_bytes"],
            "full_memory_bytes": found["full"]["memory_bytes"],
            "peak_bytes": found["full"]["peak_bytes"],
            "worker_threads": found["advice"]["worker_threads"],
            "host_memory_bytes": found["advice"]["host_memory_bytes"] or 0,
        }
        return [
            {**shared, "what": what, **{name: one[name] for name in COLUMNS[2:6]}}
            for what in ("samples", "checks")
            for one in found[what]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise files.BadResult(f"{path}: expected a profile.json of cairn profile: {error!r}") from error


def measure(args):
    head, rows = files.begun(args.dir), []
    if args.profiles:
        for path in args.profiles:
            rows += rows_of(path, os.path.basename(path).removesuffix(".json"))
    else:
        head.append("emulated: a GPU that computes (the loop waits)")
        from . import training_job

        os.makedirs(args.dir, exist_ok=True)
        data = os.path.join(args.dir, "profile-data")
        training_job.write_data(data, DATA_BYTES)
        with tempfile.TemporaryDirectory() as folder:
            for job in args.only or JOBS:
                print(f"== {job}", flush=True)
                out = os.path.join(folder, "profile.json")
                if not profile(args, job, data, out):
                    return 2
                rows += rows_of(out, job)
    files.write(args.output + ".csv", [*head, "complete"], COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
    return 0


def whole_of(rows):
    """The job's row with the whole budget."""
    return max((row for row in rows if row["what"] == "samples"), key=lambda row: (row["cores"], row["memory_bytes"]))


def axes_of(rows):
    """The rows with full memory, and those with all cores, by what varies."""
    whole = whole_of(rows)
    cores = [row for row in rows if row["memory_bytes"] == whole["memory_bytes"]]
    memory = [row for row in rows if row["cores"] == whole["cores"] and row["memory_bytes"] > 0]
    return {"cores": cores, "memory_bytes": memory}


def errors(rows):
    """How far the prediction of each check is off what was measured, as a share."""
    checks = [row for row in rows if row["what"] == "checks" and row["throughput"]]
    return [abs(row["predicted"] / row["throughput"] - 1) for row in checks]


def draw(plots, _, rows):
    figure, panels = plots.pyplot.subplots(1, 2, figsize=(8.2, 3.7))
    looks = (("#8b0000", "o"), ("#4d8f4d", "D"), ("#7fa7cf", "^"), ("#777777", "s"))
    for (job, group), (colour, marker) in zip(by(rows, "job").items(), looks * len(rows)):
        whole = whole_of(group)["throughput"]
        for axes, (name, of) in zip(panels, axes_of(group).items(), strict=True):
            unit = 1 if name == "cores" else 1 << 20
            peak = group[0]["peak_bytes"] / unit if of and name == "memory_bytes" else 0
            used = [(peak, 1.0, "samples")] if peak else []
            points = [(row[name] / unit, row["throughput"] / whole, row["what"]) for row in of]
            points = sorted(points + used)
            samples = [point for point in points if point[2] == "samples"]
            checks = [point for point in points if point[2] == "checks"]
            axes.plot(*zip(*[point[:2] for point in samples]), color=colour, marker=marker, label=job)
            if checks:
                crosses = {"color": colour, "marker": "x", "linestyle": "", "label": f"{job}: not used"}
                axes.plot(*zip(*[point[:2] for point in checks]), **crosses)
            knee = group[0]["knee_cores" if name == "cores" else "knee_memory_bytes"] / unit
            if knee:
                axes.axvline(knee, color=colour, linestyle=":", linewidth=1)
    panels[0].set_xlabel("cores; dotted: the knee")
    panels[1].set_xlabel("memory (MiB)")
    panels[1].set_xscale("log", base=2)
    panels[1].xaxis.set_major_formatter("{x:.0f}")
    panels[0].set_ylabel("throughput, of that with all")
    for axes in panels:
        axes.set_ylim(0, 1.15)
    return figure, "What the jobs need of the host"
