"""Compiles the sources of the GPU's kernels with NVRTC; scripts/make-ptx calls this.

python scripts/make_ptx.py FOLDER [--check]     FOLDER is where pip put nvidia-cuda-nvrtc-cu11
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "src/device/copy_kernels.h", ROOT / "src/device/sum_kernel.h"]
PTX_VERSION = "7.3"  # CUDA 11.3
# Maxwell, the oldest GPU that this compiler knows without a warning. Drivers compile it for every later one.
OPTIONS = ["--std=c++17", "--gpu-architecture=compute_52", f"--include-path={ROOT / 'src'}"]
# Each has been in PTX since long before that version. Look up a new one before you add it.
INSTRUCTIONS = {
    "add", "and", "bra", "cvt", "div", "ld", "max", "min", "mov", "mul", "neg", "not", "or", "ret", "selp", "setp", "shf",
    "shl", "shr", "st", "sub", "xor",
}  # fmt: skip


def main() -> None:
    folder, *options = sys.argv[1:]
    library = next(Path(folder).rglob("libnvrtc.so*"))
    for source in SOURCES:
        made = included(source, compiled(library, source))
        committed = source.with_suffix(".ptx.inc")
        if options != ["--check"]:
            committed.write_text(made)
        elif committed.read_text() != made:
            sys.exit(
                f"{committed.relative_to(ROOT)} is not what {source.relative_to(ROOT)} compiles to: run scripts/make-ptx"
            )


def compiled(library: Path, source: Path) -> str:
    """The PTX. Exits with the compiler's messages if there are any."""
    nvrtc = ctypes.CDLL(str(library))
    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))
    failed = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    log = text_of(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    if failed or log.strip():
        sys.exit(f"{source.relative_to(ROOT)}:\n{log}")
    return text_of(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)


def text_of(size_of: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    check(get(program, text))
    return text.value.decode()


def check(result: int) -> None:
    if result:
        sys.exit(f"NVRTC failed with error {result}")


def included(source: Path, ptx: str) -> str:
    """The PTX as a C++ string literal, for the oldest drivers."""
    ptx, versions = re.subn(r"(?m)^\.version .*$", f".version {PTX_VERSION}", ptx)
    if versions != 1 or ".local" in ptx:
        sys.exit("expected PTX with one version and no local memory, which would be slow")
    if new := set(re.findall(r"(?m)^\s+(?:@!?%p\d+ )?([a-z]+)[^:\n]*;$", ptx)) - INSTRUCTIONS:
        sys.exit(f"these instructions may not be in PTX {PTX_VERSION}: {', '.join(sorted(new))}")
    return f'// Made by scripts/make-ptx from {source.name}. Do not edit.\nR"ptx(\n{ptx.strip()}\n)ptx"\n'


if __name__ == "__main__":
    main()
