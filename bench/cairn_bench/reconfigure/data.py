"""What the model learns: a Markov chain. The samples of a step are the same under every layout."""

import torch

UNSEEN = -100  # What the loss ignores.


def batch_of(step, count, sizes, seed):
    """(inputs, ..., targets) of a step, each count x positions. Each token follows from the one before, three times in four.

    GPT and BLOOM guess the next token, BERT those that were replaced by token 0, one in seven. T5's encoder sees all.
    """
    random = torch.Generator().manual_seed(seed * 1_000_003 + step)
    length = sizes.positions + 1
    jumps = torch.rand((count, length), generator=random) < 0.25
    tokens = torch.randint(sizes.vocabulary, (count, length), generator=random)
    for at in range(1, length):
        follows = (5 * tokens[:, at - 1] + 3) % sizes.vocabulary
        tokens[:, at] = torch.where(jumps[:, at], tokens[:, at], follows)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if sizes.family == "bert":
        guessed = (torch.arange(sizes.positions) + torch.arange(count)[:, None]) % 7 == 0
        return inputs.masked_fill(guessed, 0), inputs.masked_fill(~guessed, UNSEEN)
    return (inputs, inputs, targets) if sizes.family == "t5" else (inputs, targets)
