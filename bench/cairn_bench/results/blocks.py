"""The generated blocks of the documents, by name."""

from . import figures, layouts, suites
from .source import counts_of_rows, counts_of_values, figure, provenance, suite


def of_figures(make, *names):
    """A block made of one or several figures' rows."""

    def block(link):
        files = [(name, *figure(name)) for name in names]
        sources = [(name, head, counts_of_rows(rows)) for name, head, rows in files]
        return f"{make(*(rows for _, _, rows in files))}\n\n{provenance(sources, link)}"

    return block


def of_suite(make, name):
    def block(link):
        head, values = suite(name)
        return f"{make(values)}\n\n{provenance([(name, head, counts_of_values(values))], link)}"

    return block


def headline(_):
    return suites.headline(suite("python-A"), suite("training")) + "\n"


BLOCKS = {
    "figure-8": of_figures(figures.throughput, "figure-8"),
    "figure-9": of_figures(figures.goodput, "figure-9"),
    "figure-9-pd-ssd": of_figures(figures.goodput, "figure-9-pd-ssd"),
    "figure-11": of_figures(figures.one_checkpoint, "figure-11"),
    "figure-12": of_figures(figures.in_flight, "figure-12"),
    "figure-13": of_figures(figures.parallel_writes, "figure-13"),
    "over-time": of_figures(figures.over_time, "figure-age", "figure-stalls", "figure-memory"),
    "figure-dtfm": of_figures(figures.networks, "figure-dtfm"),
    "roofline": of_suite(suites.roofline, "roofline"),
    "micro": of_suite(suites.micro, "micro"),
    "python-A": of_suite(suites.python, "python-A"),
    "training": of_suite(suites.training, "training"),
    "tuner": of_suite(suites.tuner, "tuner"),
    "figure-profile": of_figures(figures.profiles, "figure-profile"),
    "profiled": of_suite(suites.profiled, "profiled"),
    "figure-tenplex": of_figures(layouts.replay, "figure-tenplex"),
    "reconfigure": of_suite(layouts.reconfigure, "reconfigure"),
    "figure-cluster": of_figures(figures.cluster, "figure-cluster"),
}
HEADLINE = {"headline": headline}
