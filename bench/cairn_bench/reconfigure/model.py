"""Models of transformer layers, in pieces that pipeline stages divide: the part that one stage has.

GPT and BLOOM with Megatron's tensors, BERT, and T5, whose decoder layers are two pieces each. Heads are tensors of their own, not
tied; T5 has no relative positions.
"""

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """GPT's, BLOOM's, whose attention is biased by distance, or BERT's, which sees all tokens and has its norms after."""

    def __init__(self, sizes, tensor_rank):
        super().__init__()
        hidden = sizes.hidden
        self.sizes, self.tensor_rank = sizes, tensor_rank
        self.input_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)  # Rows by head: query, key, value.
        self.dense = nn.Linear(hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, sizes.inner)
        self.down = nn.Linear(sizes.inner, hidden)

    def forward(self, x):
        if self.sizes.family == "bert":
            x = self.input_norm(x + self.attend(x))
            return self.output_norm(x + self.down(functional.gelu(self.up(x))))
        x = x + self.attend(self.input_norm(x))
        return x + self.down(functional.gelu(self.up(self.output_norm(x))))

    def attend(self, x):
        batch, length, _ = x.shape
        # A tensor-parallel rank has some of the heads.
        found = self.query_key_value(x).view(batch, length, -1, 3, self.sizes.of_head)
        query, key, value = found.permute(3, 0, 2, 1, 4)
        bias = self.distances(length, query) if self.sizes.family == "bloom" else None
        causal = self.sizes.family == "gpt"
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal)
        return self.dense(mixed.transpose(1, 2).reshape(batch, length, -1))

    def distances(self, length, query):
        heads = query.shape[1]
        numbers = torch.arange(heads, device=query.device) + heads * self.tensor_rank + 1
        slopes = torch.exp2(-8 * numbers / self.sizes.heads).to(query.dtype)
        places = torch.arange(length, device=query.device)
        ahead = places[None] - places[:, None]
        return (slopes[:, None, None] * ahead).masked_fill(ahead > 0, -torch.inf)


class Attention(nn.Module):
    """T5's: without biases, and scores are not scaled."""

    def __init__(self, sizes):
        super().__init__()
        inner = sizes.heads * sizes.of_head
        self.of_head = sizes.of_head
        self.norm = nn.RMSNorm(sizes.hidden)
        self.q, self.k, self.v = (nn.Linear(sizes.hidden, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, sizes.hidden, bias=False)

    def forward(self, x, memory=None, causal=False):
        """x, and what it learns from memory; without memory from itself."""
        own = self.norm(x)
        seen = own if memory is None else memory
        query, key, value = (
            project(one).unflatten(-1, (-1, self.of_head)).transpose(1, 2)
            for project, one in ((self.q, own), (self.k, seen), (self.v, seen))
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)
        return x + self.o(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.norm = nn.RMSNorm(sizes.hidden)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(self.norm(x))))


class T5Layer(nn.Module):
    """An encoder layer, a decoder layer's attention or its feed-forward: takes and gives what both stacks have so far."""

    def __init__(self, sizes, number):
        super().__init__()
        self.encodes = number < sizes.layers
        attends = self.encodes or (number - sizes.layers) % 2 == 0
        if attends:
            self.self_attention = Attention(sizes)
        if attends and not self.encodes:
            self.cross_attention = Attention(sizes)
        if self.encodes or not attends:
            self.feed_forward = FeedForward(sizes)
        if number == sizes.layers - 1:
            self.norm = nn.RMSNorm(sizes.hidden)  # Of what decoders see.

    def forward(self, both):
        encoded, decoded = both
        x = encoded if self.encodes else decoded
        if hasattr(self, "self_attention"):
            x = self.self_attention(x, causal=not self.encodes)
        if hasattr(self, "cross_attention"):
            x = self.cross_attention(x, encoded)
        if hasattr(self, "feed_forward"):
            x = self.feed_forward(x)
        if hasattr(self, "norm"):
            x = self.norm(x)
        return (x, decoded) if self.encodes else (encoded, x)


class Stage(nn.Module):
    """Tokens, or what the stage before gave, to what the next one takes, or to logits. Names are the whole model's."""

    def __init__(self, sizes, mine, tensor_rank=0):
        super().__init__()
        self.sizes, self.mine = sizes, mine
        hidden, self.is_two = sizes.hidden, sizes.family == "t5"
        if "tokens" in mine:
            self.tokens = nn.Embedding(sizes.vocabulary, hidden)
            if sizes.family in ("bert", "bloom"):
                self.embedding_norm = nn.LayerNorm(hidden)
        if "positions" in mine or ("tokens" in mine and sizes.family == "bert"):
            self.positions = nn.Embedding(sizes.positions, hidden)
        numbers = [piece for piece in mine if piece.isdigit()]
        make = (lambda number: T5Layer(sizes, number)) if self.is_two else (lambda _: Layer(sizes, tensor_rank))
        self.layers = nn.ModuleDict({number: make(int(number)) for number in numbers})
        if "head" in mine:
            if sizes.family == "bert":
                self.transform = nn.Linear(hidden, hidden)
            self.norm = nn.RMSNorm(hidden) if self.is_two else nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, sizes.vocabulary, bias=False)
        self.is_first, self.is_last = "tokens" in mine, "head" in mine

    def forward(self, *x):
        x = x if self.is_two else x[0]
        for piece in self.mine:
            if piece.isdigit():
                x = self.layers[piece](x)
            else:
                x = {"tokens": self.embed, "positions": self.place, "head": self.guess}[piece](x)
        return x

    def embed(self, tokens):
        if self.is_two:
            return tuple(self.tokens(one) for one in tokens)
        x = self.tokens(tokens)
        if self.sizes.family == "bert":
            x = self.place(x)
        return self.embedding_norm(x) if hasattr(self, "embedding_norm") else x

    def place(self, x):
        return x + self.positions(torch.arange(x.shape[1], device=x.device))

    def guess(self, x):
        if self.is_two:
            encoded, x = x
            x = x + 0 * encoded  # A stage without attention owes the one before it a gradient, too.
        if self.sizes.family == "bert":
            x = functional.gelu(self.transform(x))
        return self.head(self.norm(x))


def loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
