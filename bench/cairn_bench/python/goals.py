"""What Cairn should reach."""

from ..shared.measures import Measure

GOALS = (
    Measure("A cairn", "steady blocked s", goal=0.15, factor=1e3, unit=" ms", title="caller blocked by `save`, 597 tensors"),
    Measure("C cairn", "steady blocked s", goal=40, factor=1e3, unit=" ms", title="caller blocked by `save`, 100,000 tensors"),
    Measure("A cairn-whole", "first free s", goal=0.5, unit=" s",
            title="tensors free again, first save, cap at the state's size"),
    Measure("A cairn-whole", "steady free s", goal=0.24, unit=" s",
            title="tensors free again, steady, cap at the state's size"),
    *(Measure(f"{state} cairn", "steady durable of fio", goal=0.85, more_is_better=True,
              title=f"{state} to durable, of fio's fresh-file rate") for state in "AB"),
    *(Measure(f"{state} cairn", "steady cpu s/GB", goal=0.18, title=f"{state}, CPU s/GB") for state in "AB"),
    *(Measure(f"{state} cairn", "load of fio", goal=0.9, more_is_better=True,
              title=f"{state} loaded, cold and verified, of fio's read rate") for state in "AB"),
    *(Measure(f"{state} cairn", "peak of cap", goal=1.05,
              title=f"{state}, peak memory above the state, of the cap (1 GiB)") for state in "ABC"),
    Measure("A cairn-whole", "peak of cap", goal=1.05, title="A, peak memory above the state, of a cap of its size"),
    Measure("A cairn", "busy excess per GB/s", goal=2, factor=100, unit=" %",
            title="busy loops: speed lost less the saving's CPU share, for each GB/s saved"),
)  # fmt: skip
