"""F: failures. A lost context, an exit without close, forked loaders, staging that does not fit: each ends in an error that
says so, and earlier checkpoints stay whole."""

from .context import Failed

TITLE = "failures"


def run(context, record):
    if context.no_torch:
        record.not_run("everything from Python", context.no_torch)
        return
    for way in (lost, unclosed, forked, staging):
        try:
            way(context, record)
        except Failed as failed:
            record.require(way.__name__, False, str(failed))


def asked(context, root, way):
    words = ("--root", root, "--way", way, "--megabytes", str(context.sized(1024, 8)))
    (line,) = context.worker("failing", *words, limit=180)
    return line


def restored(context, record, title, root, values):
    line = asked(context, root, "restore")
    good = line["values"] == values
    record.require(f"{title}: the newest checkpoint is whole", good, f"step {line['newest']}, verified and restored")


def lost(context, record):
    root = context.folder("lost")
    line = asked(context, root, "lost")
    record.fact("an illegal address in mid-save, torch says", line["told"])
    for key, title in (("failed", "the save that was in flight fails"), ("again", "so does the next one")):
        record.require(f"context lost: {title}", bool(line[key]), line[key] or "it did not fail", gpu_only=True)
    restored(context, record, "context lost", root, [1.0])


def unclosed(context, record):
    root = context.folder("unclosed")
    asked(context, root, "unclosed")
    restored(context, record, "exit without close", root, [1.0])


def forked(context, record):
    line = asked(context, context.folder("forked"), "forked")
    found = f"{line['batches']} batches, steps {line['steps']}"
    record.require("forked loaders: every batch comes, every save verifies", line["steps"] == [1, 2, 3], found)


def staging(context, record):
    line = asked(context, context.folder("staging"), "staging")
    refused = "ResourceExhausted" in line["refused"]
    record.require("staging beyond free memory is refused", refused, line["refused"] or "accepted", gpu_only=True)
    record.require("staging beyond free memory: the device goes on", line["goes_on"], "computed")
