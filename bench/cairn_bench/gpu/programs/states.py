"""The states whose round trip is proven: each a function that makes a tree on a device. And their comparison."""

import torch
from torch import nn


def _trained(model, device, inputs):
    """The model after two steps with AMP, its optimizer and its scaler."""
    kind = torch.float16 if device == "cuda" else torch.bfloat16
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=kind):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"model": model, "optimizer": optimizer, "scaler": scaler}


def channels_last(device, _count):
    """Convolutions in channels_last, trained with AMP: every weight of 4 dimensions is strided."""
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.Flatten(), nn.LazyLinear(10)
    model = nn.Sequential(*layers).to(device)
    inputs = torch.randn(8, 3, 12, 12, device=device).to(memory_format=torch.channels_last)
    model(inputs)
    return _trained(model.to(memory_format=torch.channels_last), device, inputs)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.out = nn.Linear(64, 1000, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.embedding(words))


def tied(device, _count):
    """An embedding whose weight is the output's too."""
    return _trained(Tied().to(device), device, torch.randint(1000, (4, 16), device=device))


def many_small(device, count):
    """100,000 tensors of 4 to 1,024 bytes."""
    whole = torch.randn(count * 256, device=device)
    return {f"t{i}": whole[i * 256 : i * 256 + 1 + i % 256].clone() for i in range(count)}


def dtypes(device, _count):
    """8-bit floats and every other kind of element."""
    kinds = (
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.bool,
        torch.int8,
    )
    kinds += (torch.uint8, torch.int16, torch.int64, torch.complex64)
    return {str(kind): torch.randn(333, 7, device=device).mul_(40).to(kind) for kind in kinds}


def odd_offsets(device, _count):
    """Views that begin at odd bytes of their storage, or are cut from larger tensors."""

    # Each of a storage of its own: targets that share memory partly are refused.
    def square():
        return torch.randn(512, 512, device=device)

    def cube():
        return torch.randn(31, 17, 65, device=device)

    def raw():
        return torch.randint(256, (1 << 20,), dtype=torch.uint8, device=device)

    views = {f"byte {begin}": raw()[begin : begin + 4099] for begin in (1, 3, 7, 4097)}
    return views | {
        "transposed": square().t(),
        "columns": square()[:, 3:100],
        "every second": square()[::2, ::2],
        "permuted": cube().permute(2, 0, 1),
        "inner": cube()[1:30, 2:16, 5:60],
        "empty": square()[:0],
        "one": square()[5, 5],
    }


def large(device, _count):
    """A tensor of 100 MiB between smaller ones, in one batch: an allocator's handles are of 20 MiB or less."""
    elements = 25 << 20 if device == "cuda" else 1 << 20
    small = {f"small {i}": torch.randn(1000 + i, device=device) for i in range(64)}
    return {"large": torch.randn(elements, device=device)} | small


STATES = {made.__name__: made for made in (channels_last, tied, many_small, dtypes, odd_offsets, large)}


def tensors(tree):
    """Every tensor of a tree, in order; modules and optimizers by their state_dict."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if hasattr(tree, "state_dict"):
        tree = tree.state_dict()
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [tensor for value in values for tensor in tensors(value)]


def as_bytes(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def copies(tree):
    return [as_bytes(tensor).clone() for tensor in tensors(tree)]


def overwrite(held):
    with torch.no_grad():
        for tensor in held:
            tensor.zero_()


def differing(tree, before):
    """How many tensors are not what they were."""
    now = tensors(tree)
    if len(now) != len(before):
        return max(len(now), len(before))
    return sum(not torch.equal(as_bytes(tensor), copy) for tensor, copy in zip(now, before))
