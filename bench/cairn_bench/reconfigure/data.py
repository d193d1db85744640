"""What the model learns: a Markov chain. The samples of a step are the same under every layout."""

import torch


def batch_of(step, count, sizes, seed):
    """(inputs, targets) of a step, each count x positions. Each token follows from the one before, three times in four."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    length = sizes.positions + 1
    jumps = torch.rand((count, length), generator=random) < 0.25
    tokens = torch.randint(sizes.vocabulary, (count, length), generator=random)
    for at in range(1, length):
        follows = (5 * tokens[:, at - 1] + 3) % sizes.vocabulary
        tokens[:, at] = torch.where(jumps[:, at], tokens[:, at], follows)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
