"""safetensors reads what Cairn writes, bit by bit, and Cairn reads what safetensors writes.

Usage: interop_test.py PATH_OF_format_interop. Wants numpy and safetensors; with torch it checks bf16 and fp8 through it too.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    sys.exit(f"{sys.executable} has no {error.name}: set CAIRN_PYTHON to a Python with numpy and safetensors")
try:
    import safetensors.torch
    import torch
except ImportError:
    torch = None

import cairn_reader

NUMPY_DTYPES = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"}


def run(*arguments):
    return subprocess.run([sys.argv[1], *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


def parse_lines(lines):
    tensors = {}
    for line in lines:
        name, dtype, shape, *data = line.split(" ")
        if name != "metadata":
            shape = [int(n) for n in shape.strip("[]").split(",") if n]
            tensors[bytes.fromhex(name).decode()] = (dtype, shape, bytes.fromhex(data[0] if data else ""))
    return tensors


def check_safetensors_reads_ours(path, wanted):
    with safetensors.safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(wanted), "names differ"
        assert file.metadata()["cairn.step"] == "1000" and file.metadata()["format"] == "pt"
        for name, (dtype, shape, data) in wanted.items():
            assert file.get_slice(name).get_dtype() == dtype, name
            if dtype in NUMPY_DTYPES:
                tensor = file.get_tensor(name)
                assert list(tensor.shape) == shape and tensor.tobytes() == data, name
    with open(path, "rb") as file:
        raw = safetensors.deserialize(file.read())
    assert len(raw) == len(wanted)
    for name, view in raw:
        assert (view["dtype"], list(view["shape"]), bytes(view["data"])) == wanted[name], name
    if torch is None:
        print("no torch: bf16 and fp8 are only compared as raw bytes")
        return
    with safetensors.safe_open(path, framework="pt") as file:
        for name, (dtype, shape, data) in wanted.items():
            tensor = file.get_tensor(name)
            assert list(tensor.shape) == shape, name
            assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == data, name


def check_second_reader(folder, wanted):
    manifest = cairn_reader.read_manifest(folder)
    assert manifest["step"] == 1000 and manifest["parent"] is None and len(manifest["shards"]) == 1
    own, tensors, parts, values = cairn_reader.read_shard(folder, manifest["shards"][0])
    assert own["cairn.attempt"] == manifest["attempt"] and own["cairn.shard"] == "3"
    tied = tensors.pop("tied \U0001f427")
    assert tensors == wanted and tied in wanted.values()
    assert list(parts.values()) == [{"name": 'whole "w"', "shape": [6, 5], "offset": [3, 0]}]
    assert values.pop("minus zero")[0] == "float"
    assert values == {
        "bool": ("bool", True),
        "double": ("float", 1.0),
        "json": ("json", '{"a": [1, 2.50]}'),
        "none": ("NoneType", None),
        "seed": ("int", -(2**63)),
        'text "\n\x01': ("str", '\U0001f427 \\ "'),
    }
    minus_zero = json.loads(own["cairn.values"])["minus zero"]
    assert math.copysign(1, minus_zero) == -1


def check_we_read_theirs(folder):
    random = numpy.random.default_rng(1)
    dtypes = [
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "float16",
        "int32",
        "uint32",
        "float32",
        "complex64",
        "float64",
    ]
    tensors = {}
    for dtype in dtypes + ["int64", "uint64"]:
        for shape in [(), (1,), (3, 5), (0, 4), (2, 1, 3)]:
            content = random.integers(0, 2 if dtype == "bool" else 256, size=shape + (numpy.dtype(dtype).itemsize,))
            tensor = numpy.ascontiguousarray(content.astype(numpy.uint8)).view(dtype).reshape(shape)
            tensors[f'{dtype} {shape} "\\\n\x01\x7f\x00é\U0001f427'] = tensor
    path = os.path.join(folder, "theirs.safetensors")
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np", "note": "\U0001f427\n"})
    lines = run("read", path)
    read = parse_lines(lines)
    assert f"metadata {b'note'.hex()} {chr(0x1F427).encode().hex()}0a" in lines
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name][1:] == (list(tensor.shape), tensor.tobytes()), name
    if torch is not None:
        names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
        tensors = {name: torch.arange(24, dtype=torch.uint8).view(getattr(torch, name)) for name in names}
        safetensors.torch.save_file(tensors, path)
        read = parse_lines(run("read", path))
        assert {name: read[name][0] for name in names} == dict(zip(names, ["BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"]))
        assert all(read[name][2] == bytes(range(24)) for name in names)
    # Allowed by the rules, but never written by the library: no padding, and offsets not in the order of names.
    text = b'{"b":{"data_offsets":[4,6],"shape":[1],"dtype":"F16"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"\1\2\3\4\5\6")
    assert parse_lines(run("read", path)) == {"a": ("F32", [], b"\1\2\3\4"), "b": ("F16", [1], b"\5\6")}


def check_index(folder):
    """A checkpoint of several shards, and one that is a single shard."""
    manifest = cairn_reader.read_manifest(folder)
    index = cairn_reader.Index(folder, manifest)
    pieces = index.pieces()
    assert len(set(pieces)) == len(pieces)
    assert set(pieces) == cairn_reader.pieces_of_headers(folder, manifest)
    assert [name.encode() for name, _ in pieces] == sorted(name.encode() for name, _ in pieces)
    for name, piece in pieces[:: max(1, len(pieces) // 50)]:
        assert piece in index.find(name), name
    assert index.find("no such tensor") == []
    return pieces, index


def check_indexed_ranks(folder):
    run("ranks", folder)
    pieces, index = check_index(folder)
    assert len(index.blocks) > 2
    by_name = {}
    for name, piece in pieces:
        by_name.setdefault(name, []).append(piece)
    assert by_name["rows"] == [(shard, (4 * shard, 0), (4, 2)) for shard in range(6)]
    assert by_name["step"] == [(shard, (), ()) for shard in range(6)]
    assert len(by_name["grid"]) == len(by_name["uneven"]) == 6
    assert by_name["frozen"] == [(6, (), ())]
    assert by_name["tied"] == [(shard, (4 * shard, 0), (4, 2)) for shard in range(6)]
    # One flipped bit in a block and in the head.
    path = os.path.join(folder, "index.cairn")
    with open(path, "rb") as file:
        good = file.read()
    for at in 1000, len(good) - 5:
        with open(path, "wb") as file:
            file.write(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            check_index(folder)
        except AssertionError:
            continue
        raise AssertionError(f"a flipped bit at {at} was not found")


def check_documented_index(folder):
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "format.md")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    lines = text.split("```text\n")[1].split("```")[0].splitlines()
    member = next(block for block in text.split("```json\n") if block.startswith(' "index":')).split("```")[0]
    with open(os.path.join(folder, "index.cairn"), "wb") as file:
        file.write(b"".join(bytes.fromhex(line.split("   ")[0]) for line in lines))
    manifest = {"shards": [{}] * 4, **json.loads("{" + member.strip().rstrip(",") + "}")}
    index = cairn_reader.Index(folder, manifest)
    assert index.find("bias") == [(0, (), ())]
    assert index.find("weight") == [(shard, (2 * shard, 0), (2, 3)) for shard in range(4)]


def check_documented_example(folder):
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "format.md")
    with open(page, encoding="utf-8") as file:
        blocks = [block.split("```")[0] for block in file.read().split("```json\n")[1:]]
    manifest = next(block for block in blocks if '"format_version":1' in block)
    header = next(block for block in blocks if "__metadata__" in block).strip().encode()
    with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
        file.write(manifest)
    with open(os.path.join(folder, "shard-00000.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", 4088) + header.ljust(4088) + struct.pack("<ff", 1, 2))
    entry = cairn_reader.read_manifest(folder)["shards"][0]
    _, tensors, parts, _ = cairn_reader.read_shard(folder, entry)
    assert tensors["head.bias"] == tensors["bias"] == ("F32", [2], struct.pack("<ff", 1, 2)) and "bias" in parts


def main():
    assert cairn_reader.crc32c(b"123456789") == 0xE3069283
    with tempfile.TemporaryDirectory() as folder:
        wanted = parse_lines(run("write", folder))
        assert len(wanted) == 17 * 6
        check_safetensors_reads_ours(os.path.join(folder, "shard-00003.safetensors"), wanted)
        check_second_reader(folder, wanted)
        pieces, _ = check_index(folder)
        assert len(pieces) == len(wanted) + 1
        check_we_read_theirs(folder)
        check_documented_example(folder)
    for check in check_indexed_ranks, check_documented_index:
        with tempfile.TemporaryDirectory() as folder:
            check(folder)


if __name__ == "__main__":
    main()
