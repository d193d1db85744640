"""CPU time and memory of a process and its descendants."""

import os
import resource

_TICK = os.sysconf("SC_CLK_TCK")


def _started(pid):
    """Every living descendant."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    found += [child, *_started(child)]
    except OSError:
        pass  # Ended in between.
    return found


def cpu_seconds():
    """Of this process, of children it has waited for, and (in ticks of 10 ms) of descendants that still run."""
    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    for pid in _started(os.getpid()):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / _TICK  # utime, stime, and those of children waited for.
    return seconds


def machine_cpu_seconds():
    """Of the whole machine, with the kernel's write-back, which is charged to no process."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICK


def _from_status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def resident_bytes():
    return _from_status("VmRSS:")


def peak_bytes():
    """The most memory that this process has had since `reset_peak`."""
    return _from_status("VmHWM:")


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def proportional_bytes(pid):
    """Memory of a process and its descendants, shared pages counted once."""
    total = 0
    for one in [pid, *_started(pid)]:
        try:
            with open(f"/proc/{one}/smaps_rollup") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass  # Ended in between.
    return total
