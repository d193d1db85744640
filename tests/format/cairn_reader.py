"""A second reader of Cairn's files, written from docs/format.md alone. It checks what that says a reader must check."""

import json
import os
import re
import struct

_TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = _n >> 1 ^ (0x82F63B78 if _n & 1 else 0)
    _TABLE.append(_n)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _unique(pairs):
    members = dict(pairs)
    assert len(members) == len(pairs), "a name twice"
    return members


def parse(text):
    return json.loads(text, object_pairs_hook=_unique)


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        text = file.read()
    tail = re.fullmatch(rb',\n "digest":"([0-9a-f]{8})"\n}\n', text[-25:])
    assert tail, "no digest"
    assert int(tail[1], 16) == crc32c(text[:-25]), "digest"
    manifest = parse(text)
    assert manifest["format_version"] == 1 and manifest["required_features"] == []
    assert manifest["world"] == len(manifest["shards"])
    return manifest


def _value(encoded):
    if isinstance(encoded, dict):
        assert list(encoded) == ["json"]
        return ("json", encoded["json"])
    return (type(encoded).__name__, encoded)


def read_shard(folder, entry):
    """The shard's tensors {name: (dtype, shape, bytes)} with its aliases, parts {name: part} and typed values."""
    with open(os.path.join(folder, entry["file"]), "rb") as file:
        content = file.read()
    assert len(content) == entry["length"]
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    assert begin % 4096 == 0
    assert crc32c(content[:begin]) == int(entry["header_digest"], 16)
    header = parse(content[8:begin])
    data = content[begin:]
    own = header.pop("__metadata__")
    assert own["cairn.format_version"] == "1"
    block = int(own["cairn.crc32c_block"])
    sums = [own["cairn.crc32c"][i : i + 8] for i in range(0, len(own["cairn.crc32c"]), 8)]
    assert sums == [f"{crc32c(data[i : i + block]):08x}" for i in range(0, len(data), block)]
    end = 0
    for tensor in header.values():
        assert tensor["data_offsets"][0] == end
        end = tensor["data_offsets"][1]
    assert end == len(data)
    tensors = {
        name: (tensor["dtype"], tensor["shape"], data[slice(*tensor["data_offsets"])])
        for name, tensor in header.items()
    }
    for name, target in parse(own.get("cairn.aliases", "{}")).items():
        assert name not in tensors
        tensors[name] = tensors[target]
    values = {name: _value(value) for name, value in parse(own.get("cairn.values", "{}")).items()}
    return own, tensors, parse(own.get("cairn.parts", "{}")), values
