"""A second reader of Cairn's files, written only from docs/format.md. It checks what a reader must check."""

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
    assert len(members) == len(pairs), "duplicate name"
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
    assert manifest["format_version"] == 1 and set(manifest["required_features"]) <= {"kept", "long_values"}
    assert manifest["world"] == len(manifest["shards"])
    assert bool(manifest.get("kept")) == ("kept" in manifest["required_features"])
    names = [entry["file"] for entry in files_of(manifest)]
    assert len(set(names)) == len(names)
    for entry in manifest.get("kept", []):
        assert entry["rank"] < manifest["world"]
        assert entry["file"] == f"kept-{entry['rank']:05}-{entry['attempt']}.safetensors"
    return manifest


def files_of(manifest):
    """The shards, then the kept files: read_shard reads both."""
    return manifest["shards"] + manifest.get("kept", [])


def _value(encoded, tensors):
    """Takes a long value's text out of the tensors."""
    if isinstance(encoded, dict) and "json_in" in encoded:
        assert set(encoded) == {"json_in", "crc32c"}
        dtype, shape, text = tensors.pop(encoded["json_in"])
        assert (dtype, shape) == ("U8", [len(text)]) and f"{crc32c(text):08x}" == encoded["crc32c"]
        json.loads(text)
        return ("json", text.decode())
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
    if "rank" in entry:
        found = own["cairn.step"], own["cairn.attempt"], own["cairn.shard"]
        assert found == (str(entry["step"]), entry["attempt"], str(entry["rank"]))
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
    values = {name: _value(value, tensors) for name, value in parse(own.get("cairn.values", "{}")).items()}
    return own, tensors, parse(own.get("cairn.parts", "{}")), values


class _Numbers:
    """Reads hostile bytes from the left."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def more(self):
        return self.at < len(self.data)

    def take(self, length):
        assert length <= len(self.data) - self.at, "truncated"
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, most=2**64 - 1):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert byte != 0 or shift == 7, "not the shortest encoding"
        assert value <= most, (value, most)
        return value


class Index:
    """Which shards hold what. Reads the head at once, and blocks on demand."""

    def __init__(self, folder, manifest):
        member = manifest["index"]
        self._path = os.path.join(folder, member["file"])
        self._shards = len(files_of(manifest))
        assert os.path.getsize(self._path) == member["length"] and member["head"] <= member["length"]
        head = self._read(member["length"] - member["head"], member["head"])
        assert crc32c(head) == int(member["digest"], 16), "head"
        numbers = _Numbers(head)
        assert numbers.number() == 1, "version"
        assert numbers.number() == self._shards
        self.blocks, begin = [], 0
        for _ in range(numbers.number()):
            first = numbers.take(numbers.number(4096))
            length = numbers.number(2**20)
            assert length > 0 and (not self.blocks or (first >= self.blocks[-1][0] and self.blocks[-1][2] >= 4096))
            self.blocks.append((first, begin, length, struct.unpack("<I", numbers.take(4))[0]))
            begin += length
        assert not numbers.more() and begin + member["head"] == member["length"]

    def _read(self, begin, length):
        with open(self._path, "rb") as file:
            file.seek(begin)
            return file.read(length)

    def find(self, name):
        """The tensor's pieces (shard, offset, shape), from the blocks that may hold some."""
        name = name.encode()
        same = [i for i, block in enumerate(self.blocks) if block[0] == name]
        lower = [i for i, block in enumerate(self.blocks) if block[0] < name]
        return [piece for i in lower[-1:] + same for found, piece in self._pieces(i) if found == name]

    def pieces(self):
        """All pieces: (name, (shard, offset, shape))."""
        return [(name.decode(), piece) for i in range(len(self.blocks)) for name, piece in self._pieces(i)]

    def _pieces(self, i):
        first, begin, length, digest = self.blocks[i]
        data = self._read(begin, length)
        assert crc32c(data) == digest, "block"
        numbers, name, pieces = _Numbers(data), b"", []
        while numbers.more():
            shared = numbers.number(len(name))
            rest = numbers.take(numbers.number(4096 - shared))
            assert shared == len(name) or (rest and rest[0] > name[shared]), "order"
            name = name[:shared] + rest
            assert pieces or name == first
            pieces += [(name, piece) for piece in self._entry(numbers)]
        return pieces

    def _entry(self, numbers):
        dimensions, several = divmod(numbers.number(129), 2)
        shard, count, shard_step, along, offset_step = numbers.number(), 1, 0, 0, 0
        if several:
            count, shard_step = numbers.number(), numbers.number()
            assert count >= 2 and shard_step >= 1
            if dimensions:
                along, offset_step = numbers.number(dimensions - 1), numbers.number()
        assert shard + (count - 1) * shard_step < self._shards
        offset = [numbers.number() for _ in range(dimensions)]
        shape = [numbers.number() for _ in range(dimensions)]
        for k in range(count):
            begin = [n + k * offset_step if d == along else n for d, n in enumerate(offset)]
            assert all(a + b <= 2**62 for a, b in zip(begin, shape))
            yield shard + k * shard_step, tuple(begin), tuple(shape)


def pieces_of_headers(folder, manifest):
    """All pieces, from the shards' headers."""
    found = set()
    for shard, entry in enumerate(files_of(manifest)):
        own, tensors, parts, _ = read_shard(folder, entry)
        boxes = {name: ((), ()) for name in tensors}
        for name, part in parts.items():
            boxes[name] = (tuple(part["offset"]), tuple(tensors[name][1]))
        for name, target in parse(own.get("cairn.aliases", "{}")).items():
            boxes[name] = boxes[target]
        found |= {(parts[name]["name"] if name in parts else name, (shard, *box)) for name, box in boxes.items()}
    return found
