"""The generated blocks of README.md and of the pages in bench/results, and the pictures beside them, by name."""

import functools

from . import figures, filesystems, front_page, layouts, suites
from .source import counts_of_rows, counts_of_values, figure, provenance, suite


def block(read, counts, make, *names, heads=False):
    """A function that makes a block of the CSVs `names`: the table that `make` gives, and where it comes from.

    `make` takes what `read` found in each file: its rows or values, with `heads` as (head, rows or values).
    """

    def made():
        files = [(name, *read(name)) for name in names]
        table = make(*((head, found) if heads else found for _, head, found in files))
        return f"{table}\n\n{provenance([(name, head, counts(found)) for name, head, found in files])}"

    return made


of_figures = functools.partial(block, figure, counts_of_rows)
of_suites = functools.partial(block, suite, counts_of_values)


BLOCKS = {
    "comparison": lambda: front_page.comparison(suite("python-A")),
    "commit-filesystems": of_suites(filesystems.commit, "commit-filesystems", heads=True),
    "figure-8": of_figures(figures.throughput, "figure-8"),
    "figure-8-memory": of_figures(figures.throughput, "figure-8-memory"),
    "figure-8-transformers": of_figures(figures.throughput, "figure-8-transformers"),
    "figure-8e": of_figures(figures.pipeline, "figure-8e"),
    "figure-9": of_figures(figures.goodput, "figure-9"),
    "figure-9-bert": of_figures(figures.goodput, "figure-9-bert"),
    "figure-9-opt": of_figures(figures.goodput, "figure-9-opt"),
    "figure-9-memory": of_figures(figures.goodput, "figure-9-memory"),
    "figure-9-pd-ssd": of_figures(figures.goodput, "figure-9-pd-ssd"),
    "figure-11-memory": of_figures(figures.one_checkpoint, "figure-11-memory"),
    "figure-11-filesystems": of_figures(filesystems.one_checkpoint, "figure-11-filesystems", heads=True),
    "figure-12": of_figures(figures.in_flight, "figure-12"),
    "figure-13": of_figures(figures.parallel_writes, "figure-13"),
    "figure-cluster": of_figures(figures.cluster, "figure-cluster"),
    "figure-dtfm": of_figures(figures.networks, "figure-dtfm"),
    "figure-profile": of_figures(figures.profiles, "figure-profile"),
    "figure-slack": of_figures(figures.slack, "figure-slack"),
    "figure-tenplex": of_figures(layouts.replay, "figure-tenplex"),
    "groups": of_suites(layouts.groups, "groups"),
    "memory": of_suites(suites.memory, "memory"),
    "micro": of_suites(suites.micro, "micro", heads=True),
    "over-time": of_figures(figures.over_time, "figure-age", "figure-stalls", "figure-memory"),
    "pccheck-engine": of_suites(suites.engine, "pccheck-engine"),
    "pipeline": of_suites(suites.pipeline, "pipeline-third", "pipeline-twice", "pipeline-tenth", "pipeline-processes"),
    "profiled": of_suites(suites.profiled, "profiled"),
    "python-A": of_suites(suites.python, "python-A", heads=True),
    "python-C": of_suites(suites.python, "python-C", heads=True),
    "reconfigure": of_suites(layouts.reconfigure, "reconfigure"),
    "reconfigure-memory": of_suites(layouts.reconfigure, "reconfigure-memory"),
    "records": of_suites(layouts.records, "records"),
    "roofline": of_suites(suites.roofline, "roofline"),
    "training": of_suites(suites.training, "training"),
    "tuner": of_suites(suites.tuner, "tuner"),
}

# The others are drawn by scripts/figures.
PICTURES = {"python-A.svg": lambda: front_page.chart(suite("python-A"))}
