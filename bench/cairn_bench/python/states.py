"""The states that are saved, on the CPU or a GPU. Their memory is touched before anything is measured.

A  597 fp32 tensors, 2.1 GB: the parameters of a multilingual BERT-base and both moments of Adam, in one flat dict
B  BERT-large and its `AdamW.state_dict()` as it is, 1,564 tensors, 4.0 GB: 391 of them 0-dim steps
C  100,000 tensors of 1 KiB
"""

from collections import OrderedDict

import torch


def bert(layers, hidden, vocabulary):
    """Names and shapes of the parameters, as transformers' BertModel has them."""
    shapes = OrderedDict()

    def linear(name, outputs, inputs):
        shapes[name + ".weight"] = (outputs, inputs)
        shapes[name + ".bias"] = (outputs,)

    def norm(name):
        shapes[name + ".weight"] = (hidden,)
        shapes[name + ".bias"] = (hidden,)

    shapes["embeddings.word_embeddings.weight"] = (vocabulary, hidden)
    shapes["embeddings.position_embeddings.weight"] = (512, hidden)
    shapes["embeddings.token_type_embeddings.weight"] = (2, hidden)
    norm("embeddings.LayerNorm")
    for layer in range(layers):
        at = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            linear(f"{at}attention.self.{part}", hidden, hidden)
        linear(at + "attention.output.dense", hidden, hidden)
        norm(at + "attention.output.LayerNorm")
        linear(at + "intermediate.dense", 4 * hidden, hidden)
        linear(at + "output.dense", hidden, 4 * hidden)
        norm(at + "output.LayerNorm")
    linear("pooler.dense", hidden, hidden)
    return shapes


_values = torch.rand(1 << 20, generator=torch.Generator().manual_seed(1))


def _filled(shape, device, scale=1.0):
    shape = (max(1, int(shape[0] * scale)), *shape[1:])
    made = torch.empty(shape, device=device)
    flat = made.view(-1)
    for begin in range(0, flat.numel(), _values.numel()):
        part = flat[begin : begin + _values.numel()]
        part.copy_(_values[: part.numel()])
    return made


def _state_a(scale, device):
    shapes = bert(12, 768, 119547)
    return {
        f"{group}.{name}": _filled(shape, device, scale)
        for group in ("model", "exp_avg", "exp_avg_sq")
        for name, shape in shapes.items()
    }


def _state_b(scale, device):
    shapes = bert(24, 1024, 30522)
    parameters = {name: torch.nn.Parameter(_filled(shape, device, scale)) for name, shape in shapes.items()}
    optimizer = torch.optim.AdamW(parameters.values())
    # What a first step makes, without its temporary memory.
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": _filled(tuple(parameter.shape), device),
            "exp_avg_sq": _filled(tuple(parameter.shape), device),
        }
    return {
        "model": OrderedDict((name, parameter.detach()) for name, parameter in parameters.items()),
        "optimizer": optimizer.state_dict(),
    }


def _state_c(scale, device):
    return {f"tensor.{i}": _filled((256,), device) for i in range(max(1, int(100_000 * scale)))}


STATES = {"A": _state_a, "B": _state_b, "C": _state_c}


def tensors(tree, prefix=""):
    """(dotted name, tensor) of each tensor in nested dicts and lists, in order."""
    if isinstance(tree, torch.Tensor):
        yield prefix, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from tensors(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from tensors(value, f"{prefix}.{i}")
