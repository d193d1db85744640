"""A dilation with which this machine keeps the pace of the emulated one.

The optimizer step rewrites the state. Where memory is slow that takes more than half of an iteration, and bench_training
refuses the run. A larger dilation gives it more time and keeps all ratios: the figure chooses one and says so.
"""

from .runs import Refused

SPARE = 1.5  # Of the pace, for what is slower later.
MOST = 1024
REASON = "--iteration-seconds"  # How the refusal begins.


def dilations(args):
    """Those that every point is measured at."""
    return args.dilation if isinstance(args.dilation, list) else [args.dilation]


def keep(args, plan, one):
    """Raises args.dilation until this machine keeps the pace of all models of the plan. Returns notes for the CSV.

    A GPU has its own pace, and so has who gives --update-seconds.
    """
    if args.device == "cuda" or getattr(args, "update_seconds", None):
        return []
    asked = dilations(args)
    factor = 1
    for entry in _models(plan):
        while not _kept(args, entry, one, min(asked) * factor):
            factor *= 2
    if factor == 1:
        return []
    chosen = [dilation * factor for dilation in asked]
    args.dilation = chosen if isinstance(args.dilation, list) else chosen[0]
    note = f"dilation {_words(chosen)} instead of {_words(asked)}: with less an update takes half of an iteration here"
    print(f"  {note}", flush=True)
    return [note]


def _words(numbers):
    return " and ".join(f"{number:g}" for number in numbers)


def _models(plan):
    """The training without checkpoints of each model. Sizes that a figure sets itself have a slow pace already."""
    found = {}
    for entry in plan:
        if "state_bytes" not in entry["options"]:
            found.setdefault((entry["program"], entry["options"].get("model"), entry["options"]["scale"]), entry)
    for entry in found.values():
        kept = {name: entry["options"][name] for name in ("model", "scale", "network") if name in entry["options"]}
        yield {**entry, "strategy": "none", "options": {**kept, "every": 1, "iterations": 2}}


def _kept(args, entry, one, dilation):
    try:
        one(args, {**entry, "options": {**entry["options"], "dilation": dilation / SPARE}})
    except Refused as reason:
        if REASON not in str(reason) or dilation >= MOST:
            raise
        return False
    return True
