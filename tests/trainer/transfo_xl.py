"""Transformer-XL's layers in plain torch, after Hugging Face's former TransfoXLLMHeadModel: same names, ties and
layout (length before batch), and einsum instead of cairn_train's matmul."""

from __future__ import annotations

from typing import Any, NamedTuple

from models import torch

nn = torch.nn


class Config(NamedTuple):
    vocabulary: int
    cutoffs: list[int]
    div_val: int
    untie_r: bool
    hidden: int = 24
    layers: int = 3
    heads: int = 2
    head_size: int = 10
    ffn: int = 40
    memory: int = 11

    @property
    def sizes(self) -> list[str]:
        """Sizes, named as in --size."""
        cutoffs = {f"cutoff{i + 1}": cutoff for i, cutoff in enumerate(self.cutoffs)}
        return [f"{name}={int(size)}" for name, size in (self._asdict() | cutoffs).items() if name != "cutoffs"]

    @property
    def ends(self) -> list[int]:
        return [0, *(cutoff for cutoff in self.cutoffs if cutoff < self.vocabulary), self.vocabulary]


class AdaptiveEmbedding(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.emb_layers, self.emb_projs = nn.ModuleList(), nn.ParameterList()
        if config.div_val == 1:
            self.emb_layers.append(nn.Embedding(config.vocabulary, config.hidden))
            return
        for i, (begin, end) in enumerate(zip(config.ends, config.ends[1:], strict=False)):
            width = config.hidden // config.div_val**i
            self.emb_layers.append(nn.Embedding(end - begin, width))
            self.emb_projs.append(nn.Parameter(torch.empty(config.hidden, width)))

    def forward(self, ids: Any) -> Any:
        if self.config.div_val == 1:
            return self.emb_layers[0](ids) * self.config.hidden**0.5
        embedded = torch.zeros(*ids.shape, self.config.hidden)
        for i, begin in enumerate(self.config.ends[:-1]):
            inside = (ids >= begin) & (ids < self.config.ends[i + 1])
            embedded[inside] = self.emb_layers[i](ids[inside] - begin) @ self.emb_projs[i].T
        return embedded * self.config.hidden**0.5


class Attention(nn.Module):
    def __init__(self, config: Config, r_w_bias: Any, r_r_bias: Any) -> None:
        super().__init__()
        self.config = config
        width = config.heads * config.head_size
        self.qkv_net = nn.Linear(config.hidden, 3 * width, bias=False)
        self.o_net = nn.Linear(width, config.hidden, bias=False)
        self.r_net = nn.Linear(config.hidden, width, bias=False)
        self.layer_norm = nn.LayerNorm(config.hidden)
        self.r_w_bias = nn.Parameter(torch.empty(config.heads, config.head_size)) if r_w_bias is None else r_w_bias
        self.r_r_bias = nn.Parameter(torch.empty(config.heads, config.head_size)) if r_r_bias is None else r_r_bias

    def forward(self, w: Any, r: Any, mems: Any) -> Any:
        queries, keys = len(w), len(r)
        heads = self.qkv_net(torch.cat([mems, w])).unflatten(-1, (3, self.config.heads, self.config.head_size))
        q, k, v = heads[-queries:, :, 0], heads[:, :, 1], heads[:, :, 2]
        by_key = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        distance = self.r_net(r).unflatten(-1, (self.config.heads, self.config.head_size))
        by_distance = torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, distance)
        # One by one: the i-th query is i + (keys - queries) - j away from the j-th key, and r begins with the farthest.
        shifted = torch.full_like(by_key, -torch.inf)
        for i in range(queries):
            last = i + keys - queries
            for j in range(last + 1):
                shifted[i, j] = by_distance[i, keys - 1 - (last - j)]
        prob = ((by_key + shifted) / self.config.head_size**0.5).softmax(1)
        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).flatten(2)
        return self.layer_norm(w + self.o_net(vec))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        layers = [nn.Linear(config.hidden, config.ffn), nn.ReLU(), nn.Dropout(0), nn.Linear(config.ffn, config.hidden)]
        self.CoreNet = nn.Sequential(*layers)
        self.layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, x: Any) -> Any:
        return self.layer_norm(x + self.CoreNet(x))


class Layer(nn.Module):
    def __init__(self, config: Config, r_w_bias: Any, r_r_bias: Any) -> None:
        super().__init__()
        self.dec_attn = Attention(config, r_w_bias, r_r_bias)
        self.pos_ff = FeedForward(config)


class Transformer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.word_emb = AdaptiveEmbedding(config)
        shared = [None, None]
        if not config.untie_r:
            self.r_w_bias = nn.Parameter(torch.empty(config.heads, config.head_size))
            self.r_r_bias = nn.Parameter(torch.empty(config.heads, config.head_size))
            shared = [self.r_w_bias, self.r_r_bias]
        self.layers = nn.ModuleList([Layer(config, *shared) for _ in range(config.layers)])

    def forward(self, ids: Any, mems: list[Any]) -> tuple[Any, list[Any]]:
        """`ids` [length, batch]; the memory of each layer [memory, batch, hidden], before and after."""
        x = self.word_emb(ids)
        keys = len(ids) + len(mems[0])
        frequencies = 1 / 10000 ** (torch.arange(0.0, self.config.hidden, 2.0) / self.config.hidden)
        angles = torch.outer(torch.arange(keys - 1, -1, -1.0), frequencies)
        r = torch.cat([angles.sin(), angles.cos()], dim=-1)
        after = []
        for layer, before in zip(self.layers, mems, strict=True):
            after.append(torch.cat([before, x])[-self.config.memory :])
            x = layer.pos_ff(layer.dec_attn(x, r, before))
        return x, after


class Softmax(nn.Module):
    def __init__(self, config: Config, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.config = config
        self.out_layers, self.out_projs = nn.ModuleList(), nn.ParameterList()
        for i, table in enumerate(embedding.emb_layers):
            self.out_layers.append(nn.Linear(*reversed(table.weight.shape)))
            self.out_layers[i].weight = table.weight
            if config.div_val > 1:
                own = nn.Parameter(torch.empty(config.hidden, config.hidden))
                self.out_projs.append(embedding.emb_projs[i] if i else own)
        if clusters := len(config.ends) - 2:
            self.cluster_weight = nn.Parameter(torch.empty(clusters, config.hidden))
            self.cluster_bias = nn.Parameter(torch.empty(clusters))

    def part(self, hidden: Any, i: int) -> Any:
        begin, end = self.config.ends[i : i + 2]
        if self.config.div_val == 1:
            weight, bias = self.out_layers[0].weight[begin:end], self.out_layers[0].bias[begin:end]
        else:
            weight, bias = self.out_layers[i].weight @ self.out_projs[i].T, self.out_layers[i].bias
        logits = hidden @ weight.T + bias
        if i == 0 and len(self.config.ends) > 2:
            projection = torch.eye(self.config.hidden) if self.config.div_val == 1 else self.out_projs[0].T
            logits = torch.cat([logits, hidden @ (self.cluster_weight @ projection).T + self.cluster_bias], dim=-1)
        return logits.log_softmax(-1)

    def forward(self, hidden: Any) -> Any:
        first = self.config.ends[1]
        head = self.part(hidden, 0)
        tails = [head[..., first + i - 1, None] + self.part(hidden, i) for i in range(1, len(self.config.ends) - 1)]
        return torch.cat([head[..., :first], *tails], dim=-1)


class TransfoXL(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.crit = Softmax(config, self.transformer.word_emb)

    def forward(self, ids: Any, mems: list[Any]) -> tuple[Any, list[Any]]:
        hidden, mems = self.transformer(ids, mems)
        return self.crit(hidden), mems

    def fresh(self, batch: int) -> list[Any]:
        return [torch.zeros(self.config.memory, batch, self.config.hidden) for _ in range(self.config.layers)]
