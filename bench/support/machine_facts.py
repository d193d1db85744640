"""What a result was measured on: for the head of its CSV, and for whoever compares two of them."""

import os
import platform
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def machine(directory):
    """Cores, processor, kernel, and the filesystem that `directory` is on, in one line."""
    with open("/proc/cpuinfo") as file:
        models = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    model = " and ".join(sorted(models)) or platform.machine()
    device = os.stat(directory).st_dev
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    here = f"{os.major(device)}:{os.minor(device)}"
    filesystem = next((mount[mount.index("-") + 1] for mount in mounts if mount[2] == here), "an unknown filesystem")
    return f"{len(os.sched_getaffinity(0))} cores, {model}; Linux {platform.release()}; {filesystem}"


def commit():
    """The commit that is checked out, and whether something that is measured was changed since: no document or result."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    ran = git("describe", "--always", "--exclude=*", "--abbrev=7")
    if ran.returncode != 0:
        return "no git checkout"
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":!bench/results", ":!*.md").returncode != 0
    return ran.stdout.strip() + ("-dirty" if changed else "")
