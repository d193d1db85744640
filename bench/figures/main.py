"""scripts/figures: finds the figure that is asked for."""

import importlib
import os
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(__file__), "../support")]

FIGURES = {
    "8": "throughput",
    "9": "goodput_figure",
    "11": "one_checkpoint",
    "12": "in_flight",
    "13": "parallel_writes",
    "age": "over_time",
    "stalls": "over_time",
    "memory": "over_time",
}


def main(arguments):
    only_parse = arguments[:1] == ["--parse"]
    arguments = arguments[only_parse:]
    if not arguments or arguments[0] not in FIGURES:
        found = f'unknown figure "{arguments[0]}"' if arguments else "which figure?"
        print(f"figures: {found}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    figure = importlib.import_module(FIGURES[arguments[0]])
    args = figure.parse(arguments)
    return 0 if only_parse else figure.run(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
