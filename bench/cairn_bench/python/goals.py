"""What Cairn should reach."""

from ..shared.measures import Measure

GOALS = (
    *(Measure(f"{state} cairn", "steady blocked s", goal=goal, factor=1e3, unit=" ms",
              title=f"caller blocked by `save`, {tensors} tensors")
      for state, goal, tensors in (("A", 0.15, "597"), ("C", 40, "100,000"))),
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
