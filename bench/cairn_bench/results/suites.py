"""The tables of the other benchmarks, in markdown, from the single values in their CSVs."""

import itertools
import re

from ..engine.measure import TITLES as ENGINE
from ..engine.measure import lines as engine_lines
from ..memory import MEASURES as MEMORY
from ..micro import judged as micro_judged
from ..pipeline import MEASURES as PIPELINE
from ..python.goals import GOALS
from ..python.tables import side_by_side
from ..roofline import MEASURES
from ..shared.report import Report, spread, table
from ..training import ALWAYS, MODELS, OWN, RARELY
from ..training import judged as training_judged


def judged(values, measures):
    report = Report(values=values)
    report.judge(measures)
    return report.text()


def roofline(values):
    return judged(values, MEASURES)


def memory(values):
    return judged(values, MEMORY)


def micro(measured):
    head, values = measured
    return micro_judged(head, Report(values=values)).text()


def pipeline(*parts):
    return judged({key: value for values in parts for key, value in values.items()}, PIPELINE)


def python(measured):
    head, values = measured
    return f"{judged(values, GOALS)}\n\n{side_by_side(head, values)}"


def training(values):
    rows = []
    for model, every in itertools.product(MODELS, (RARELY, ALWAYS)):
        names = ("slowdown %", OWN, "bound %", "fence p99 of a step %", "durable s")
        found = [values.of(model, "step s"), *(values.of(f"{model}, every {every}", name) for name in names)]
        rows.append([f"{model}, every {every}", *(spread(of) if of else "-" for of in found)])
    titles = ("saves", "a step without saves, s", "slowdown, %", "against its own steps without a save, %",
              "least possible, %", "fence p99, % of a step", "durable after, s")  # fmt: skip
    return f"{training_judged(Report(values=values)).text()}\n\n{table(titles, rows)}"


def tuner(values):
    profiles = dict.fromkeys(cell.removesuffix(", chosen") for cell, _, _ in values if cell.endswith(", chosen"))
    lines = []
    for profile in profiles:
        chosen = {name: values.median(f"{profile}, chosen", name)
                  for name in ("interval", "best interval", "predicted slowdown", "predicted write s")}  # fmt: skip
        swept = {cell for cell, _, _ in values if re.match(rf"{profile}, every \d", cell)}
        here = [cell for cell in swept if cell.startswith(f"{profile}, every {chosen['interval']:.0f},")]
        best = max(values.median(cell, "goodput") for cell in swept)
        worst = min(values.median(cell, "goodput") for cell in here)
        slowdowns = [100 * (values.median(cell, "slowdown") - 1) for cell in here]
        writes = [values.median(cell, "write s") for cell in here]
        lines.append([
            profile, f"{chosen['interval']:.0f}", f"{chosen['best interval']:.0f}", f"{worst / best:.4f}",
            f"{100 * (chosen['predicted slowdown'] - 1):.2f}", between(slowdowns, "{:.2f}".format),
            f"{chosen['predicted write s']:.3f}", between(writes, "{:.3f}".format),
        ])  # fmt: skip
    return table(("profile", "interval chosen", "best of the sweep", "goodput there, of the best's",
                  "slowdown predicted, %", "measured, %", "write predicted, s", "measured, s"), lines)  # fmt: skip


def between(values, form):
    """Of one and of two in flight, where both were measured."""
    return " to ".join(dict.fromkeys((form(min(values)), form(max(values)))))


def engine(values):
    """The strategy pccheck beside PCcheck's own engine."""
    return table(ENGINE, engine_lines(values))


def profiled(values):
    arms = dict.fromkeys(cell for cell, _, _ in values if values.of(cell, "slowdown %"))
    rows = []
    for arm in arms:
        about = [f"{values.median(arm, name):.0f}" for name in ("interval", "worker threads")]
        rows.append([arm, *about, spread(values.of(arm, "slowdown %"), "{:.1f}".format)])
    return table(("", "saves every, iterations", "`worker_threads`", "slowdown, %"), rows)
