"""A GPT with Megatron's tensors: the part that one pipeline stage has. The head is a tensor of its own, not tied."""

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        hidden = sizes.hidden
        self.head_size = hidden // sizes.heads
        self.input_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)  # Rows by head: query, key, value.
        self.dense = nn.Linear(hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, _ = x.shape
        # A tensor-parallel rank has some of the heads.
        found = self.query_key_value(self.input_norm(x)).view(batch, length, -1, 3, self.head_size)
        query, key, value = found.permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dense(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(functional.gelu(self.up(self.output_norm(x))))


class Stage(nn.Module):
    """Tokens, or what the stage before gave, to what the next one takes, or to logits. Names are the whole model's."""

    def __init__(self, sizes, layers, is_first, is_last):
        super().__init__()
        if is_first:
            self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
            self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.layers = nn.ModuleDict({str(number): Layer(sizes) for number in layers})
        if is_last:
            self.norm = nn.LayerNorm(sizes.hidden)
            self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x):
        if self.is_first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if self.is_last else x


def loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
