"""Measures a change of layout, save to durable plus read, with cairn.dcp, with DCP's own files and by one central rank.

A state of the size of GPT-3 XL's eighth (2.2 GB, fp32 with AdamW's moments) goes from (pipeline, tensor, data) = (4,2,2) to
(4,2,1) to (2,2,1) and back, each layout with real processes on CPUs over gloo. Each job saves with every system in turn, the next
job reads with every system in turn, and its order changes from one to the next. To open and close a Checkpointer counts, as the
others' writers and readers do. Everything is fsynced before a save counts as done. Before each save and read the page cache is
filled with a sparse file's pages (shared/machine.py says why), and before a read it drops what is read. After each
change fio writes and reads as many bytes: less no system needs. In the first repetition every tensor's digest is compared after
each read. Needs torch, fio, 8 GB of disk and 12 GB of memory; about 20 minutes on two cores.
Writes reconfigure.csv; with --disk-in-memory, for which 24 GB of memory hold two systems' files but not three's,
reconfigure-memory.csv.

central: rank 0 gathers all, torch.save, fsync; torch.load, scatter.
"""

import os
import shutil
import statistics
import tempfile
import time

from ..shared import files, machine
from ..shared.fio import fio, hugepages
from ..shared.measures import Measure
from ..shared.options import add_directory, add_record, add_repetitions, some_of
from ..shared.report import Report, short, table
from .jobs import Failed, Job
from .layout import LAYOUTS
from .sizes import model_name
from .train import Settings, join

CHAIN = [LAYOUTS[gpus] for gpus in (16, 8, 4, 8, 16)]
NAMES = ("cairn", "DCP", "central")
CHANGE = ".* to .*"
BLOCK = 4 << 20  # fio's.
MEASURES = [
    Measure(CHANGE, "cairn s", "DCP s", goal=0.5, title="save and read, of DCP's"),
    Measure(CHANGE, "cairn s", "central s", goal=0.2, title="save and read, of one central rank's"),
    Measure(CHANGE, "fio s", "DCP s", title="fio's write and read of these bytes, of DCP's"),
    Measure(CHANGE, "fio s", "central s", title="fio's write and read of these bytes, of one central rank's"),
    Measure(CHANGE, "cairn bytes read", "bytes needed", goal=1.02, title="bytes read, of those needed"),
    Measure(CHANGE, "DCP bytes read", "bytes needed", title="bytes read by DCP, of those needed"),
]


def add_arguments(parser):
    add_directory(parser)
    add_record(parser)
    add_repetitions(parser, 3)
    parser.add_argument("--model", type=model_name, default="xl/8", help="default: xl/8")
    about = f"by comma; default: {','.join(NAMES)}"
    parser.add_argument("--systems", type=some_of(NAMES), default=list(NAMES), help=about)
    parser.add_argument("--host-memory", default="64MiB", help="of each rank's pool; default: 64MiB")


def visit(settings, before, after, order, verify, tell):
    """One rank of a layout: reads what is in the folder `before` with each system, then saves into `after`."""
    import torch
    import torch.distributed as dist

    from . import state as states
    from .parallel import Trainer
    from .systems import SYSTEMS, local

    torch.set_num_threads(1)
    device, group = join(settings.timeout)
    trainer = Trainer(settings, device)
    state = states.gather(trainer)
    mine = sum(tensor.nbytes for tensor in local(state))
    tell("needed", bytes=mine)

    def timed(what, name, folder):
        system = SYSTEMS[name](trainer, group, settings.host_memory)
        if dist.get_rank() == 0:
            if what == "load":
                machine.drop_pages(os.path.join(before, name))
            machine.fill_page_cache(4 * mine * dist.get_world_size() // settings.layout.data)
        dist.barrier(group)
        begun, read = time.monotonic(), bytes_read()
        opened = system.open(os.path.join(folder, name))
        (system.load if what == "load" else system.save)(opened, state)
        system.close(opened)
        dist.barrier(group)
        tell(what, system=name, seconds=time.monotonic() - begun, bytes=bytes_read() - read)

    for name in order if before else ():
        for tensor in local(state):
            tensor.zero_()
        timed("load", name, before)
        if dist.get_rank() == 0:
            shutil.rmtree(os.path.join(before, name))  # The disk need not hold two of each.
        if verify and (found := states.digests(state, group)):
            tell("digests", system=name, digests=found)
    if not before:
        trainer.initialize()
        fill(trainer)
    for name in order if after else ():
        timed("save", name, after)
    if after and verify and not before and (found := states.digests(state, group)):
        tell("digests", system="first", digests=found)
    dist.barrier(group)
    dist.destroy_process_group()


def fill(trainer):
    """Moments that depend on the weights alone, so that replicas hold the same."""
    import torch

    with torch.no_grad():
        for parameter, moments in trainer.optimizer.state.items():
            moments["exp_avg"].copy_(parameter * 0.1)
            moments["exp_avg_sq"].copy_(parameter * parameter)


def bytes_read():
    """By this process, from storage."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def go_through(args, report, repetition):
    """All layouts of the chain once. Adds to the report what each change took."""
    with tempfile.TemporaryDirectory(prefix="reconfigure-", dir=args.dir) as folder:
        saved, first, before = {}, None, ""
        for at, layout in enumerate(CHAIN):
            after = os.path.join(folder, str(at)) if at + 1 < len(CHAIN) else ""
            turn = (at + repetition) % len(args.systems)
            order = args.systems[turn:] + args.systems[:turn]
            settings = Settings(folder, layout, 0, model=args.model, host_memory=args.host_memory)
            with Job(layout.world, visit, settings, before, after, order, repetition == 0) as job:
                job.finish(1200)
            for told in job.all("digests"):
                first = first or told["digests"]
                if told["digests"] != first:
                    raise Failed(f"{CHAIN[at - 1]} to {layout}: {told['system']} read other tensors than were saved")
            if before:
                change = f"{CHAIN[at - 1]} to {layout}"
                add(report, change, repetition, saved, job)
                shutil.rmtree(before)
                state = sum(told["bytes"] for told in job.all("needed")) // layout.data
                report.single(change, repetition, "fio s", time_fio(os.path.join(folder, "fio"), state))
            saved, before = slowest(job, "save") if after else {}, after


def time_fio(file, size):
    """Seconds in which the disk takes so many bytes, durable, and gives them back."""
    size, memory = -(-size // BLOCK) * BLOCK, hugepages()
    written, _ = fio(file, "write", memory, size, keep=True)
    read, _ = fio(file, "read", memory, size)
    os.unlink(file)
    print(f"  fio: write {size / written:.2f} s, read {size / read:.2f} s", flush=True)
    return size / written + size / read


def slowest(job, what):
    """{system: seconds until all ranks were done}."""
    found = {}
    for told in job.all(what):
        found[told["system"]] = max(told["seconds"], found.get(told["system"], 0))
    return found


def add(report, change, repetition, saved, job):
    loaded = slowest(job, "load")
    report.single(change, repetition, "bytes needed", sum(told["bytes"] for told in job.all("needed")))
    for name in loaded:
        read = sum(told["bytes"] for told in job.all("load") if told["system"] == name)
        report.single(change, repetition, f"{name} save s", saved[name])
        report.single(change, repetition, f"{name} read s", loaded[name])
        report.single(change, repetition, f"{name} s", saved[name] + loaded[name])
        report.single(change, repetition, f"{name} bytes read", read)
        print(
            f"  {change} {name}: save {saved[name]:.2f} s, read {loaded[name]:.2f} s, {read / 1e9:.2f} GB", flush=True
        )


def measures(values):
    """Those whose systems were measured."""
    found = {what for _, _, what in values}
    return [one for one in MEASURES if {one.ours, one.peer} <= found]


def seconds(values):
    """The table of medians, in markdown."""
    rows, names = [], [name for name in NAMES if any(what == f"{name} s" for _, _, what in values)]
    for change in dict.fromkeys(measure for measure, _, _ in values):
        cells = [
            short(statistics.median(values.of(change, f"{name} {what} s")))
            for name in names
            for what in ("save", "read")
        ]
        rows.append([change, *cells])
    return table(("", *(f"{name}, {what} s" for name in names for what in ("save", "read"))), rows)


def run(args):
    head = files.begun(args.dir)
    report, name = Report(args.folder), "reconfigure" if args.disk_in_memory is None else "reconfigure-memory"
    machine.fill_page_cache(machine.memory())
    with report.kept(name, head):
        for repetition in range(args.repetitions):
            print(f"{repetition + 1}/{args.repetitions}", flush=True)
            go_through(args, report, repetition)
    report.judge(measures(report.values))
    print(seconds(report.values))
    report.write(name, head)
    return 0
