"""A: the first contact. The driver's answers, the contract suites with no test skipped, and every access checked."""

import json
import os
import shutil
import tempfile
from typing import NamedTuple

from .context import Failed

TITLE = "first contact"
# Contracts of devices of another kind, which a GPU skips; and the double's variant that takes no strides.
OTHERS = "-*SumsCoverBlocks*:*FencesWithoutStreams*:*DeviceStrides*/without_kernels"
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
    findings = json.loads(out) if out else []
    record.require("cairn doctor --gpu", status == 0, f"exit {status} {errors.strip()[:200]}".strip())
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
    with tempfile.NamedTemporaryFile(suffix=".json", dir=context.directory) as report:
        words = [program, f"--gtest_filter={chosen}", f"--gtest_output=json:{report.name}"]
        status, out, _ = context.run(words, 300, env)
        try:
            ran = json.load(report)
        except ValueError:
            record.require(line, False, f"{os.path.basename(program)}: exit {status} before its report: {out[-200:]!r}")
            return
    tests = [test for group in ran["testsuites"] for test in group["testsuite"]]
    tests = [test for test in tests if test["status"] == "RUN"]
    failed = [test["name"] for test in tests if "failures" in test]
    skipped = [test["name"] for test in tests if test["result"] == "SKIPPED"]
    good = status == 0 and bool(tests) and not failed and not skipped
    names = ", ".join((failed + skipped)[:5])
    found = f"{len(tests)} tests, {len(failed)} failed, {len(skipped)} skipped"
    record.require(line, good, f"{found}: {names}" if names else found)


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
        status, out, errors = context.run(words, 420)
    except Failed as failed:
        record.not_resolved(line, str(failed))
        return
    summary = [text for text in (out + errors).splitlines() if "ERROR SUMMARY" in text]
    record.require(line, status == 0, summary[-1].strip("= ") if summary else f"exit {status}")
