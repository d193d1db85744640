"""A user's tree <-> named tensors and one JSON text. Nothing is pickled. Containers of plain values alone, of which there may
be millions, are written and read in C++ (bindings/plain_values.cc), and so are the texts.

**Names.** A tensor's name is its path, components joined by "/". A str key stands for itself with "~" as "~0" and "/"
as "~1", so a flat state_dict keeps its names; an int key and a position in a list or tuple is its decimal; True, False
and None are spelled out. A str key that would read as one of those, the empty one and "__metadata__" (which safetensors
reserves) gets the prefix "~s". A tree that is itself one tensor is named "~t"; "~m" is an OrderedDict's `_metadata`.
Names are injective: two leaves never share one.

**Text.** `{"version":1,"tree":NODE}`, or 2 or 4 if it has nodes marked so, compact, at most 64 levels, where NODE is

| value                                  | node |
|----------------------------------------|------|
| None, bool, finite float, str          | plain JSON; a str of another class (torch.__version__) comes back as a str |
| int of 64 bits with sign; longer       | plain JSON; `["int","0x..."]` |
| float inf, -inf, nan                   | `["float","inf"]`; a NaN's payload is kept in a packed list only |
| complex                                | `["complex",NODE,NODE]` |
| bytes                                  | `["bytes","base64"]` |
| torch.Tensor or Parameter; numpy array | `["t"]`; `["a"]`: dtype and shape are with the tensor of that name |
| other array (__array__, __dlpack__)    | `["a"]`: it comes back as a numpy array |
| dict with str keys only; other dict    | `{"key":NODE,...}`; `["dict",KEY,NODE,KEY,NODE,...]` |
| OrderedDict; Counter                   | `["odict",METADATA or null,KEY,NODE,...]`; `["counter",KEY,NODE,...]` |
| list; tuple; torch.Size                | `["list",NODE,...]`; `["tuple",...]`; `["size",...]` |
| 1,024 floats, or ints of 64 bits, and more, in a list or tuple (4) | `["packed","list","<i4","base64"]`; "<i8"; "<f8" |
| set; frozenset                         | `["set",NODE,...]`; `["frozenset",...]`, sorted by text |
| namedtuple                             | `["namedtuple","Class","field field",NODE,...]` |
| Enum member                            | `["enum","Class","NAME"]` |
| dtypes that safetensors lacks (2)      | `["t","complex128"]`, `["a",...]`: its bytes are a U8 tensor; see `values` |
| bytearray; BytesIO (2)                 | `["bytearray","base64"]`; `["bytesio","base64",position]` |
| range; slice (2)                       | `["range",start,stop,step]`; `["slice",...]` |
| path; timedelta (2)                    | `["path","PosixPath","text"]`; `["timedelta",days,seconds,microseconds]` |
| datetime, date, time (2)               | `["time","datetime","ISO 8601",fold]` |
| deque (2)                              | `["deque",maxlen or null,NODE,...]` |
| dataclass (2)                          | `["dataclass","module:Class",{"field":NODE,...}]` |
| numpy scalar                           | `["numpy","<f4","hex of its bytes"]` |
| torch.dtype; torch.device              | `["dtype","float32"]`; `["device","cuda:0"]` |
| object with state_dict, load_state_dict | `["state",NODE of its state_dict()]` |

Where no tree is given to restore into (cairn.dcp), a class is "module:Class", for Enum members and namedtuples too (2).

Beside "tree", "optimizers" has the class of each torch optimizer, by its path: `{"optimizer":"AdamW"}`; "parameters" has the
names of its parameters in their order, `{"optimizer":["model/weight"]}`, if one of them is of a torch module in the tree: the
tensors' names, without what torch.compile adds, and "" for what is in no module; "schedulers" has the classes of each torch scheduler and of those within it,
`{"scheduler":["SequentialLR","LinearLR","StepLR"]}`; "objects" has the classes of other objects whose path ends with a
number, which only their position tells apart: `{"models/0":"Generator"}`. Readers that do not know these ignore them.

KEY is null, a bool, an int (`["int","0x..."]` too) or a str. Order of dicts is kept. Everything else is refused.
"""

from .codec import Parsed, Plan, Stored, build, flatten, kinds, names, plan_restore

__all__ = ["Parsed", "Plan", "Stored", "build", "flatten", "kinds", "names", "plan_restore"]
