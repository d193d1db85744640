"""What Cairn should reach, and whether it does."""

# state, system, measure, name, factor, goal, at least, unit
GOALS = (
    ("A", "cairn", "steady blocked s", "caller blocked by `save`, 597 tensors", 1e3, 0.15, False, " ms"),
    ("C", "cairn", "steady blocked s", "caller blocked by `save`, 100,000 tensors", 1e3, 40, False, " ms"),
    (
        "A",
        "cairn-whole",
        "first free s",
        "tensors free again, first save, cap at the state's size",
        1,
        0.5,
        False,
        " s",
    ),
    ("A", "cairn-whole", "steady free s", "tensors free again, steady, cap at the state's size", 1, 0.24, False, " s"),
    ("A", "cairn", "steady durable of fio", "A to durable, of fio's fresh-file rate", 1, 0.85, True, ""),
    ("B", "cairn", "steady durable of fio", "B to durable, of fio's fresh-file rate", 1, 0.85, True, ""),
    ("A", "cairn", "steady cpu s/GB", "A, CPU s/GB", 1, 0.18, False, ""),
    ("B", "cairn", "steady cpu s/GB", "B, CPU s/GB", 1, 0.18, False, ""),
    ("A", "cairn", "load of fio", "A loaded, cold and verified, of fio's read rate", 1, 0.9, True, ""),
    ("B", "cairn", "load of fio", "B loaded, cold and verified, of fio's read rate", 1, 0.9, True, ""),
    ("A", "cairn", "peak of cap", "A, peak memory above the state, of the cap (1 GiB)", 1, 1.05, False, ""),
    ("B", "cairn", "peak of cap", "B, peak memory above the state, of the cap (1 GiB)", 1, 1.05, False, ""),
    ("C", "cairn", "peak of cap", "C, peak memory above the state, of the cap (1 GiB)", 1, 1.05, False, ""),
    ("A", "cairn-whole", "peak of cap", "A, peak memory above the state, of a cap of its size", 1, 1.05, False, ""),
    (
        *("A", "cairn", "busy excess per GB/s"),
        *("busy loops: speed lost less the saving's CPU share, for each GB/s saved", 100, 2, False, " %"),
    ),
)


def judge(report, samples):
    for state, system, measure, name, factor, goal, least, unit in GOALS:
        if values := samples.of(state, system, measure):
            report.figure(name, [factor * value for value in values], goal, least, unit)
