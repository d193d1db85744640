"""The generated blocks of the documents, by name."""

import os

from ..shared import RESULTS
from . import figures, filesystems, layouts, suites
from .source import counts_of_rows, counts_of_values, figure, provenance, suite


def of_figures(make, *names):
    """A block made of one or several figures' rows."""

    def block(link):
        files = [(name, *figure(name)) for name in names]
        sources = [(name, head, counts_of_rows(rows)) for name, head, rows in files]
        return f"{make(*(rows for _, _, rows in files))}\n\n{provenance(sources, link)}"

    return block


def with_head(make, name, read, counts):
    """A block made of (head, content) of one file, as `read` gives them."""

    def block(link):
        head, found = read(name)
        return f"{make((head, found))}\n{provenance([(name, head, counts(found))], link)}"

    return block


def once_measured(block, name, command, about=None):
    """With the picture if it has one; until there is a file, how to get one."""

    def made(link):
        if not os.path.exists(os.path.join(RESULTS, f"{name}.csv")):
            return f"Not measured yet: `{command}`.\n"
        picture = f"![{about}]({link}/{name}.png)\n\n" if about else ""
        return f"{picture}{block(link)}"

    return made


def of_suites(make, *names):
    def block(link):
        files = [(name, *suite(name)) for name in names]
        sources = [(name, head, counts_of_values(values)) for name, head, values in files]
        return f"{make(*(values for _, _, values in files))}\n\n{provenance(sources, link)}"

    return block


def headline(_):
    return suites.headline(suite("python-A")) + "\n"


BLOCKS = {
    "pccheck-engine": of_suites(suites.engine, "pccheck-engine"),
    "figure-8": of_figures(figures.throughput, "figure-8"),
    "figure-8e": once_measured(
        of_figures(figures.pipeline, "figure-8e"),
        "figure-8e",
        "scripts/figures 8e",
        "Throughput of two nodes against the checkpoint interval",
    ),
    "figure-9": of_figures(figures.goodput, "figure-9"),
    "figure-9-pd-ssd": of_figures(figures.goodput, "figure-9-pd-ssd"),
    "figure-11": of_figures(figures.one_checkpoint, "figure-11-memory"),
    "figure-11-filesystems": once_measured(
        with_head(filesystems.one_checkpoint, "figure-11-filesystems", figure, counts_of_rows),
        "figure-11-filesystems",
        "scripts/figures 11 --filesystems machine,ext4,xfs --megabytes 10,100 --output bench/results/figure-11-filesystems",
        "One checkpoint on three filesystems: size over time to durable",
    ),
    "figure-12": of_figures(figures.in_flight, "figure-12"),
    "figure-13": of_figures(figures.parallel_writes, "figure-13"),
    "over-time": of_figures(figures.over_time, "figure-age", "figure-stalls", "figure-memory"),
    "figure-dtfm": of_figures(figures.networks, "figure-dtfm"),
    "figure-slack": once_measured(
        of_figures(figures.slack, "figure-slack"),
        "figure-slack",
        "scripts/figures slack",
        "The slack of 1F1B pipelines: instructions of each stage, idle time, the longest path",
    ),
    "roofline": of_suites(suites.roofline, "roofline"),
    "micro": of_suites(suites.micro, "micro"),
    "commit-filesystems": once_measured(
        with_head(filesystems.commit, "commit-filesystems", suite, counts_of_values),
        "commit-filesystems",
        "scripts/bench micro --only commit --filesystems machine,ext4,xfs",
    ),
    "python-A": of_suites(suites.python, "python-A"),
    "pipeline": of_suites(suites.pipeline, "pipeline-third", "pipeline-twice", "pipeline-tenth", "pipeline-processes"),
    "training": of_suites(suites.training, "training"),
    "tuner": of_suites(suites.tuner, "tuner"),
    "figure-tenplex": of_figures(layouts.replay, "figure-tenplex"),
    "reconfigure": of_suites(layouts.reconfigure, "reconfigure"),
    "reconfigure-memory": once_measured(
        of_suites(layouts.reconfigure, "reconfigure-memory"),
        "reconfigure-memory",
        "scripts/bench reconfigure --disk-in-memory 5 --systems cairn,DCP",
    ),
    "records": once_measured(of_suites(layouts.records, "records"), "records", "scripts/bench records"),
    "figure-profile": of_figures(figures.profiles, "figure-profile"),
    "profiled": of_suites(suites.profiled, "profiled"),
    "figure-cluster": of_figures(figures.cluster, "figure-cluster"),
}
HEADLINE = {"headline": headline}
