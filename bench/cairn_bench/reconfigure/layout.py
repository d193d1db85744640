"""How a job's ranks divide a model."""

from dataclasses import dataclass


class BadLayout(ValueError):
    """A layout that this model or batch cannot have. Says which number does not fit."""


@dataclass(frozen=True)
class Layout:
    """Sizes of pipeline, tensor and data parallelism. Ranks are in Megatron's order: tensor fastest, pipeline slowest."""

    pipeline: int
    tensor: int
    data: int

    @classmethod
    def parse(cls, text):
        """From "4,2,2"."""
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 3 or min(sizes) < 1:
            raise BadLayout(f'layout {text!r}: expected pipeline, tensor and data parallel sizes, such as "4,2,2"')
        return cls(*sizes)

    @property
    def world(self):
        return self.pipeline * self.tensor * self.data

    def __str__(self):
        return f"{self.pipeline},{self.tensor},{self.data}"

    def check(self, sizes, batch, micro_batch):
        """BadLayout unless it can train a model of these sizes."""
        for what, whole, part in (
            ("heads", sizes.heads, self.tensor),
            ("vocabulary", sizes.vocabulary, self.tensor),
            ("batch", batch, self.data * micro_batch),
        ):
            if whole % part:
                raise BadLayout(f"layout {self}: expected a {what} that {part} divides, found {whole}")
        if self.pipeline > sizes.layers:
            raise BadLayout(f"layout {self}: expected at least {self.pipeline} layers, found {sizes.layers}")
        if batch // (self.data * micro_batch) < self.pipeline:
            raise BadLayout(
                f"layout {self}: expected at least {self.pipeline} micro-batches a step for 1F1B, found "
                f"{batch // (self.data * micro_batch)}"
            )

    def layers_of(self, stage, layers):
        """The model's layers on a pipeline stage."""
        return range(stage * layers // self.pipeline, (stage + 1) * layers // self.pipeline)


# Tenplex (SOSP 2024), figure 9: (minutes, GPUs) of one training job, and its layout at each number of GPUs.
SEGMENTS = [(35, gpus) for gpus in (16, 8, 4, 8) * 3 + (16, 8, 4)] + [(13, 8)]
LAYOUTS = {16: Layout(4, 2, 2), 8: Layout(4, 2, 1), 4: Layout(2, 2, 1)}
