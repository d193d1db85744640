"""B: copies. Cairn's lanes beside one large pinned copy, and what copying does to everything beside it."""

import statistics

from .context import Failed

TITLE = "copies"
RATIO = 0.9  # Of the single copy's rate.
LONGEST_LAUNCH = 200e-6  # Seconds.
SLOWDOWN = 1.01  # Of matrix products, while snapshots are captured beside them.
MIB = 1 << 20


def run(context, record):
    for part in (link, sums, pieces, launches, beside_products):
        try:
            part(context, record)
        except Failed as failed:
            record.require(f"{part.__name__.replace('_', ' ')}: measured", False, str(failed))


def ask(context, *words, limit):
    return context.answers([context.program("bench_gpu"), *words], limit, context.double)


def link(context, record):
    small = ("--bytes", 8 * MIB, "--milliseconds", 1, "--pairs", 1)
    short = ("--milliseconds", 40)
    lines = ask(context, "link", *context.sized((), small, short), limit=300)
    copies = [line for line in lines if line["what"] == "copies"]
    memory = [line for line in lines if line["what"] == "memory"]
    intact = bool(memory) and all(line["intact"] for line in memory)
    record.require("bytes that went to the GPU and back", intact, f"compared {len(memory)} times")
    if not copies or not memory:
        raise Failed("bench_gpu link printed no rates")
    for way in ("to_host", "to_device"):
        rates = [line[f"single_{way}"] / 1e9 for line in copies]
        record.fact(f"one copy {way.replace('_', ' ')}", f"{statistics.median(rates):.1f} GB/s", rates)
        for lanes, chunk in dict.fromkeys((line["lanes"], line["chunk"]) for line in copies):
            ratios = [
                line[way] / line[f"single_{way}"] for line in copies if (line["lanes"], line["chunk"]) == (lanes, chunk)
            ]
            what = f"{lanes} lane{'s' * (lanes > 1)}, chunks of {chunk // MIB} MiB"
            record.judge(f"{what}, {way.replace('_', ' ')}, of one copy", ratios, RATIO, more_is_better=True)
    pinned = [line["pin_seconds_per_gib"] for line in memory]
    record.fact("pinning", f"{statistics.median(pinned):.3f} s/GiB", pinned)
    staged = [line["staging"] / 1e9 for line in memory]
    record.fact("staging, device to device", f"{statistics.median(staged):.0f} GB/s", staged)


def sums(context, record):
    """Checksums by the GPU: that they are the host's, and what they cost the copies."""
    small = ("--milliseconds", 1, "--pairs", 1)
    lines = ask(context, "sums", *context.sized((), small), limit=120)
    compared = sum(line["blocks"] for line in lines if line["what"] == "compared")
    record.require("checksums by the GPU are the host's", compared > 0, f"{compared} blocks of 1 MiB compared")
    rates = [line for line in lines if line["what"] == "rates"]
    if not rates:
        raise Failed("bench_gpu sums printed no rates")
    name = "copies to the host with the GPU's checksums, of the same without"
    record.judge(name, [line["with"] / line["without"] for line in rates], RATIO, more_is_better=True)


def pieces(context, record):
    """Many small pieces, as Cairn copies them (by kernels and batches, where the driver has them), and by one copy each."""
    short = ("--bytes", 256 * MIB)
    lines = ask(context, "pieces", *context.sized((), ("--bytes", MIB, "--repetitions", 1), short), limit=300)
    for count, size in dict.fromkeys((line["count"], line["size"]) for line in lines):
        here = [line for line in lines if (line["count"], line["size"]) == (count, size)]
        for way in ("to_host", "to_device"):
            ours, peers = (statistics.median(line[way][by] for line in here) for by in ("cairn", "one_by_one"))
            found = f"{1e6 * ours / count:.2f} µs a piece, {count * size / ours / 1e9:.2f} GB/s; {peers / ours:.1f} times as fast"
            values = [line[way]["one_by_one"] / line[way]["cairn"] for line in here]
            record.fact(f"{count:,} pieces of {size:,} B, {way.replace('_', ' ')}, beside one copy each", found, values)


def launches(context, record):
    """The longest launch of another thread while the copies of saves wait in the lanes, whose queues they fill."""
    small = ("--tensors", 300, "--tensor-bytes", 4096, "--pool", 32 * MIB, "--milliseconds", 20, "--no-kernels")
    many = ("--tensors", 50_000, "--tensor-bytes", 16 << 10, "--pool", 1024 * MIB, "--no-kernels")
    for what, words in (("", ()), (" of 50,000 tensors without kernels", many)):
        root = context.folder("launches-of-many" if words else "launches")
        said = ask(context, "launches", "--root", root, *context.sized(words, small), limit=180)
        found = {line["what"]: line for line in said}
        alone, beside = found["launches alone"], found["launches beside saves"]
        for line in (alone, beside):
            times = f"{line['count']}, p50 {1e6 * line['p50']:.1f} µs, p99.9 {1e6 * line['p999']:.1f} µs"
            record.fact(line["what"] + what, times)
        full = found["full lanes"]["count"]
        record.require(f"a lane was full beside saves{what}", full > 0, f"{full} times")
        name = f"another thread's longest launch beside saves{what}"
        if alone["max"] > LONGEST_LAUNCH < beside["max"]:
            record.not_resolved(
                name, f"{1e6 * beside['max']:.0f} µs, and {1e6 * alone['max']:.0f} µs without any save", "<= 200 µs"
            )
        else:
            record.most(name, 1e6 * beside["max"], 1e6 * LONGEST_LAUNCH, " µs")
        longest = f"{1e3 * found['fences']['max']:.2f} ms of {found['fences']['count']}"
        record.fact(f"fence{what}, longest", longest)


def beside_products(context, record):
    """Matrix products of torch, and snapshots that are staged meanwhile, or copied and summed by the GPU."""
    for words, way in (((), "staging"), (("--gpu-checksums",), "copies with checksums by the GPU")):
        name = f"matrix products beside {way}, of their time alone"
        if context.no_torch:
            record.not_run(name, context.no_torch)
            continue
        small = context.sized((), ("--megabytes", "4", "--side", "32", "--saves", "2"))
        lines = context.worker("products", "--root", context.folder("products"), *words, *small, limit=180)
        record.judge(name, [line["beside"] / line["alone"] for line in lines], SLOWDOWN)
        if words:
            continue
        calls = [1e3 * line["call"] for line in lines]
        record.fact("the call of save, 2,048 tensors of 1 MiB", f"{statistics.median(calls):.1f} ms", calls)
        staged = all(line["staged"] for line in lines)
        record.require("each snapshot was staged", staged, f"{len(lines)} saves", gpu_only=True)
