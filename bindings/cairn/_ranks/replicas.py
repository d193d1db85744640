"""What is replicated, that is equal on every rank: its names in a tree, and how other ranks' checkpoints are read.

A tree's leaves are its tensors and its plain values, with the names of `_tree`. A list of plain numbers is one value. A
leaf belongs to its rank unless it is replicated: it matches a pattern, or lies in a DistributedDataParallel module.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .. import _core
from .._arguments import texts
from .._errors import Corrupt, InvalidArgument, counted
from .._tree import Stored, names
from .._tree.codec import members_of
from .._tree.paths import MAX_LEVELS, join, listed, part_of
from .._tree.reader import key_of
from .._tree.tensors import StoredTensors

_VERSION = 2
_LONGEST_TEXT = 60  # Characters of a value that ranks compare; longer values are compared by digest.
# What forward writes, as a module's state_dict() has it: there it cannot be told that it is a buffer.
STATISTICS = re.compile(r"[/.](running_mean|running_var|num_batches_tracked)$")
_SHARD = re.compile(r"(?:shard|kept)-(\d+)[.-]")  # The files of a rank.
_PLAIN = (int, float, str, type(None))
TENSOR = object()  # Stands for a tensor among leaves.

Arguments = tuple[list[str], list[str], list[tuple[str, str]]]  # As _core.Checkpointer.save takes them.
NOTHING: Arguments = ([], [], [])


@dataclass(frozen=True)
class Rules:
    """Which names are replicated: those that match a whole pattern (with * and ?), and those at or below a path in
    `under`, except those at or below a path in `but`. None that matches a pattern in `per_rank`."""

    patterns: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    per_rank: tuple[str, ...] = ()
    given: tuple[str, ...] = field(default=(), compare=False)  # The patterns that a caller gave as plain text.

    @staticmethod
    def of(patterns: str | Iterable[str] | Rules, per_rank: str | Iterable[str] = ()) -> Rules:
        if isinstance(patterns, Rules):
            return patterns
        given = patterns_of("replicated", patterns)
        return Rules(given, per_rank=patterns_of("per_rank", per_rank), given=given)

    def __or__(self, other: Rules) -> Rules:
        both = (
            (*a, *b)
            for a, b in (
                (self.patterns, other.patterns),
                (self.under, other.under),
                (self.but, other.but),
                (self.per_rank, other.per_rank),
                (self.given, other.given),
            )
        )
        return Rules(*(tuple(dict.fromkeys(one)) for one in both))

    def __bool__(self) -> bool:
        return bool(self.patterns or self.under)

    def covers(self, name: str) -> bool:
        if self.per_rank and matches(self.per_rank, name):
            return False
        if name in self.patterns or (self.patterns and matches(self.patterns, name)):
            return True
        return _is_under(name, self.under) and not _is_under(name, self.but)

    def text(self) -> str:
        members: dict[str, Any] = {"version": 1, "patterns": self.patterns, "under": self.under, "but": self.but}
        if self.per_rank:
            members |= {"version": 2, "per_rank": self.per_rank}
        return json.dumps(members, separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Rules:
        try:
            match members := json.loads(text):
                case {"version": int(version), "patterns": list(a), "under": list(b), "but": list(c)} if (
                    version <= _VERSION
                    and isinstance(d := members.get("per_rank", []), list)
                    and all(isinstance(one, str) for one in (*a, *b, *c, *d))
                ):
                    return Rules(tuple(a), tuple(b), tuple(c), tuple(d))
        except ValueError:
            pass
        raise Corrupt("the checkpoint's list of what is replicated: expected version, patterns, under, but")


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether it matches all of one of the patterns."""
    return expression(patterns).match(name) is not None


def patterns_of(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(texts(option, given))


@lru_cache(maxsize=64)
def expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Matches names that match all of one of the patterns. The same object for the same patterns, mostly."""
    # Of fnmatch's signs * and ? alone: names have brackets.
    return re.compile("|".join(fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns))


def _is_under(name: str, paths: tuple[str, ...]) -> bool:
    return any(not path or name == path or name.startswith(path + "/") for path in paths)


def leaves(node: Any, name: str = "") -> list[tuple[str, Any]]:
    """The leaves below one node of a tree's text, by name: the node of a value, TENSOR for a tensor."""
    found: list[tuple[str, Any]] = []
    _gather(node, name, found)
    return found


def _gather(node: Any, name: str, found: list[tuple[str, Any]]) -> None:
    if isinstance(node, dict):
        for key, child in node.items():
            _gather(child, join(name, part_of(key, name)), found)
        return
    if node is TENSOR:
        found.append((name or "~t", TENSOR))
        return
    match node:
        case ["t" | "a", *_]:
            found.append((name or "~t", TENSOR))
        case ["dict" | "counter", *rest]:
            _gather_pairs(rest, name, found)
        case ["odict", metadata, *rest]:
            if metadata is not None:
                _gather(metadata, join(name, "~m"), found)
            _gather_pairs(rest, name, found)
        case ["list" | "tuple", *rest] if not all(isinstance(child, _PLAIN) for child in rest):
            for i, child in enumerate(rest):
                _gather(child, join(name, str(i)), found)
        case ["deque", _, *rest] | ["namedtuple", _, _, *rest]:
            for i, child in enumerate(rest):
                _gather(child, join(name, str(i)), found)
        case ["state", inner] | ["dataclass", _, inner]:
            _gather(inner, name, found)
        case _:
            found.append((name, node))


def _gather_pairs(pairs: list[Any], name: str, found: list[tuple[str, Any]]) -> None:
    for key, child in zip(pairs[::2], pairs[1::2], strict=True):
        _gather(child, join(name, part_of(key_of(key), name)), found)


def tree_of(text: str) -> Any:
    """The root node of a tree's text."""
    return members_of(text, ["t"], unpack=False)["tree"]


# Saving


def leaves_of(text: str) -> list[tuple[str, Any]]:
    """The leaves of a whole text, made fast because the caller of `save` waits. Packed lists stay so."""
    return leaves(_core.parse_tree(text, TENSOR, MAX_LEVELS, False)["tree"])


def find_modules(tree: Any) -> tuple[Rules, list[str]]:
    """What DistributedDataParallel modules in a tree's containers replicate, and the names of the buffers of all modules
    that rank 0 writes if they are replicated.

    DDP broadcasts rank 0's buffers before each forward, so rank 0's are written: also of the module within it, which a
    pattern may replicate. Without broadcast_buffers each rank has its own.
    """
    torch = sys.modules.get("torch")
    under: list[str] = []
    but: list[str] = []
    rank0_tensors: list[str] = []

    def walk(node: Any, name: str) -> None:
        if isinstance(node, module):
            buffers = {join(name, part_of(key, name)) for key, _ in node.named_buffers(remove_duplicate=False)}
            if not isinstance(node, ddp):
                rank0_tensors.extend(sorted(buffers))
                return
            ignored = {join(name, part_of(f"module.{key}", name)) for key in node.parameters_to_ignore}
            under.append(name)
            but.extend(sorted(ignored if node.broadcast_buffers else ignored | buffers))
            rank0_tensors.extend(sorted(buffers - ignored if node.broadcast_buffers else ()))
            return
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in items:
            if isinstance(child, known):
                part = part_of(key, name) if isinstance(node, dict) else str(key)
                walk(child, join(name, part))

    if torch is not None and hasattr(torch, "nn"):
        module, ddp = torch.nn.Module, torch.nn.parallel.DistributedDataParallel
        known = (dict, list, tuple, module)
        if isinstance(tree, known):
            walk(tree, "")
    return Rules((), tuple(under), tuple(but)), rank0_tensors


def unmatched(patterns: Iterable[str], text: str) -> list[str]:
    """Those that match no name in a tree's text."""
    left = dict.fromkeys(patterns)
    for name, _ in leaves_of(text):
        for pattern in [pattern for pattern in left if matches((pattern,), name)]:
            del left[pattern]
        if not left:
            break
    return [*left]


def short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{len(text)} characters with CRC {zlib.crc32(text.encode()):08x}"


# Reading


@dataclass(frozen=True)
class RankView:
    """A checkpoint as one rank sees it."""

    text: str  # Of its tree.
    saved: Mapping[str, Stored]  # The tensors that the rank may read, by name.
    tied: dict[str, str]  # The tied ones among them, each with the name of the tensor that holds the bytes.
    rules: Rules = Rules()

    def replicated_in(self, tensors: Mapping[str, Any]) -> bool:
        """Whether a third or more of these tensors' bytes is replicated."""
        every = shared = 0
        for name, tensor in tensors.items() if self.rules else ():
            every += tensor.nbytes
            shared += tensor.nbytes if self.rules.covers(name) else 0
        return 0 < every <= 3 * shared


def tree_text(details: dict[str, Any], rank: int = 0) -> str:
    """The text of the tree that a rank saved."""
    values = details["values"][rank] if rank < len(details["values"]) else {}
    if "dcp" in values:
        raise InvalidArgument(
            f"{details['path']} was saved through cairn.dcp: read it with torch.distributed.checkpoint.load and "
            "cairn.dcp.StorageReader"
        )
    if "tree" not in values:
        raise InvalidArgument(
            f"{details['path']} holds no tree, because the C++ API wrote it: read it with safetensors"
        )
    text = values["tree"]
    assert isinstance(text, str)
    return text


Find = Callable[[list[str]], Iterable[Any]]  # Names -> those tensors that exist, as in details["tensors"].


def own_shard(details: dict[str, Any], rank: int, world: int) -> int:
    """The rank whose state this rank reads."""
    return 0 if details["world"] != world else rank


def rank_view(
    details: dict[str, Any],
    rank: int,
    world: int,
    declared: Rules,
    *,
    like: Any = None,
    wanted: Sequence[str] = (),
    find: Find | None = None,
) -> RankView:
    """What rank `rank` of `world` reads of a checkpoint: its own state, and what is replicated.

    If another number of ranks saved it, only what is replicated can be read (of a checkpoint of one rank, also what the
    reader declares as replicated). Then a dict `like` may lack the keys of other state; InvalidArgument names what is
    left. `wanted`: only these names are read. `find`: `details` has only the rank's own shard, and this finds tensors
    in other shards.
    """
    resized = details["world"] != world
    own = own_shard(details, rank, world)
    values = details["values"][own] if own < len(details["values"]) else {}
    rules = Rules.parse(values["replicas"]) if "replicas" in values else Rules()
    if details["world"] == 1:
        rules |= declared
    text = tree_text(details, own)
    if resized:
        text = _readable_text(details, world, text, rules, like, wanted)
    if details["world"] == 1 and not resized:
        return RankView(text, StoredTensors(details["tensors"]), details["tensors"].tied())
    mine: dict[str, Stored] = {}
    others: dict[str, Stored] = {}
    tied: dict[str, str] = {}

    def take(tensors: Iterable[Any]) -> None:
        for name, dtype, shape, _, file, target, _ in tensors:
            number = _SHARD.match(file)
            holds = mine if details["world"] == 1 or (number and int(number[1]) == own) else others
            holds[name] = Stored(dtype, tuple(shape))
            if target and (holds is mine or name not in mine):
                tied[name] = target

    take(details["tensors"])
    if find is not None and rules and details["world"] > 1:
        take(find([name for name in names(text) if name not in mine and rules.covers(name)]))
    saved = {name: of for name, of in others.items() if rules and rules.covers(name)} | mine
    if resized:
        saved = {name: of for name, of in saved.items() if rules.covers(name)}
    return RankView(text, saved, tied, rules)


def _readable_text(
    details: dict[str, Any], world: int, text: str, rules: Rules, like: Any, wanted: Sequence[str]
) -> str:
    """A tree's text without what `like` leaves out. InvalidArgument if something in it is still not replicated."""
    root = tree_of(text)
    if isinstance(root, dict) and isinstance(like, dict):
        left_out = [
            key for key in root if key not in like and _not_replicated(leaves(root[key], part_of(key, "")), rules)
        ]
        if left_out:
            root = {key: child for key, child in root.items() if key not in left_out}
            text = json.dumps(members_of(text, ["t"], unpack=False) | {"tree": root})
    of_ranks = _not_replicated(leaves(root), rules)
    if wanted:
        of_ranks = [name for name in of_ranks if name in set(wanted)]
    if of_ranks:
        raise InvalidArgument(
            f"{details['path']} was saved by {counted(details['world'], 'rank')} and is read by {world}: only what was "
            f"replicated can be read then, but each rank has its own {listed(of_ranks)}. Leave these keys out of the tree; if "
            f"they are equal on all ranks, save them with replicated={_patterns(of_ranks)}"
        )
    return text


def _patterns(names: list[str]) -> list[str]:
    """Patterns that match these names, one for each key of the tree's root."""
    return [*dict.fromkeys(f"{name.partition('/')[0]}/*" if "/" in name else name for name in names)]


def _not_replicated(found: list[tuple[str, Any]], rules: Rules) -> list[str]:
    return [name for name, _ in found if not rules.covers(name)]
