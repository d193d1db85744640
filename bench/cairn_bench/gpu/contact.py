"""A: the first contact. The driver's answers, the contract suites with no test skipped, and every access checked."""

import json
import os
import shutil
import tempfile
from typing import NamedTuple

from .context import Failed

TITLE = "first contact"
PROVEN_BY_DOCTOR = ("events", "round trip", "strides")
# A contract of devices of another kind, which a GPU skips; and what the double's variant without kernels does not do.
OTHERS = "-*FencesWithoutStreams*:*SumsCoverBlocks*/without_kernels:*DeviceStrides*/without_kernels"
CONTRACT = f"*Contract*{OTHERS}"


class Suite(NamedTuple):
    """Tests of a program, and the same or similar ones of the program that is linked with the driver's double."""

    title: str
    program: str
    tests: str
    on_double: str
    tests_on_double: str
    connections: int = 0  # CUDA_DEVICE_MAX_CONNECTIONS; 0: not set.


SUITES = (
    Suite("device contract", "test_cuda", f"*{OTHERS}:CudaAvailable*", "test_fake_cuda", CONTRACT),
    Suite("fences with CUDA_DEVICE_MAX_CONNECTIONS=1", "test_cuda", "CudaFence*", "test_fake_cuda", "*CallersStream*",
          connections=1),
    Suite("strategies of the benchmarks", "test_bench", "*Cuda*", "test_bench_fake_cuda", "*Cuda*"),
)  # fmt: skip


def run(context, record):
    doctor(context, record)
    for suite in SUITES:
        contract(context, record, suite)
    sanitizer(context, record)


def doctor(context, record):
    small = ("--gpu-memory", "8MiB", "--probe-time", "100ms")
    words = [context.program("cairn"), "doctor", "--gpu", "--json", *context.sized((), small)]
    status, out, errors = context.run(words, 120, context.double)
    try:
        findings = json.loads(out)
    except ValueError:
        findings = []
    proven = {finding["name"] for finding in findings if finding["value"] is True}
    unproven = [name for name in PROVEN_BY_DOCTOR if f"cuda:0 {name}" not in proven]
    found = f"exit {status} {errors.strip()[:200]}".strip() + (f", not proven: {', '.join(unproven)}" * bool(unproven))
    record.require("cairn doctor --gpu", status == 0 and not unproven, found)
    for finding in findings:
        if isinstance(finding["value"], bool):
            record.require(finding["name"], finding["state"] == "ok", finding["found"])
        else:
            record.fact(finding["name"], finding["found"])


def contract(context, record, suite):
    """Every test of a suite must pass, and none may be skipped."""
    line = f"{suite.title}: all pass, 0 skipped"
    program = context.program(suite.on_double if context.dry else suite.program)
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": str(suite.connections)} if suite.connections else {}
    chosen = suite.tests_on_double if context.dry else suite.tests
    ran = run_tests(context, [program, f"--gtest_filter={chosen}"], 300, env)
    record.require(line, ran.good, ran.found)


class Tests(NamedTuple):
    """What a program of tests did: `good` only if some ran, none failed, and none was skipped."""

    good: bool
    found: str
    output: str


def run_tests(context, words, limit, env=None):
    with tempfile.NamedTemporaryFile(suffix=".json", dir=context.directory) as report:
        status, out, errors = context.run([*words, f"--gtest_output=json:{report.name}"], limit, env)
        try:
            ran = json.load(report)
        except ValueError:
            program = os.path.basename(words[0])
            return Tests(False, f"{program}: exit {status} before its report: {out[-200:]!r}", out + errors)
    tests = [test for group in ran["testsuites"] for test in group["testsuite"]]
    tests = [test for test in tests if test["status"] == "RUN"]
    failed = [test["name"] for test in tests if "failures" in test]
    skipped = [test["name"] for test in tests if test["result"] == "SKIPPED"]
    names = ", ".join((failed + skipped)[:5])
    found = f"{len(tests)} tests, {len(failed)} failed, {len(skipped)} skipped" + (f": {names}" if names else "")
    if messages := [failure["failure"] for test in tests for failure in test.get("failures", ())]:
        found += f": {' '.join(messages[0].split())[:600]}"
    good = status == 0 and bool(tests) and not failed and not skipped
    return Tests(good, found if status == 0 or failed else f"exit {status}; {found}", out + errors)


def sanitizer(context, record):
    line = "compute-sanitizer memcheck finds nothing"
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if found is None:
        record.not_run(line, "no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
        return
    # The suites provoke errors of the driver on purpose: those are no findings.
    words = [found, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    words += [context.program("test_fake_cuda" if context.dry else "test_cuda"), f"--gtest_filter={CONTRACT}"]
    try:
        ran = run_tests(context, words, 420)
    except Failed as failed:
        record.not_resolved(line, str(failed))
        return
    summary = [text.strip("= ") for text in ran.output.splitlines() if "ERROR SUMMARY" in text]
    # Its summary is good too where no test has touched a GPU.
    record.require(line, ran.good and bool(summary), "; ".join([*(summary[-1:] or ["no summary"]), ran.found]))
