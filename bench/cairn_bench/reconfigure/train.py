"""One rank of a job that trains a GPT, saves it, and goes on from the newest checkpoint under any layout of ranks.

    torchrun --nproc-per-node 4 -m cairn_bench.reconfigure.train --layout 2,2,1 --root /mnt/nvme/gpt --steps 100

Run it again with another layout, and as many ranks as that has, to go on. Prints the loss of each step. On GPUs, with
NCCL, nobody has run it yet; on CPUs it uses gloo. --export-timing-csv records when each instruction of the pipeline ran.
"""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import logging
import os
import re
import sys
import time
import warnings
from dataclasses import dataclass

from ..shared.options import positive
from .layout import UNIFORM, BadLayout, Layout, partition
from .sizes import model_name, sizes_of


@dataclass(frozen=True)
class Settings:
    root: str
    layout: Layout
    steps: int
    model: str = "tiny"
    dtype: str = "float32"
    data_parallel: str = "replicate"
    batch: int = 8  # Sequences a step, over all ranks.
    micro_batch: int = 1
    save_every: int = 0  # Steps. 0: only the last, which is saved anyway.
    seed: int = 1
    learning_rate: float = 1e-3
    reverse: bool = False  # Each rank's micro-batches in reverse order.
    digests: bool = False  # Of every tensor that is restored and saved.
    host_memory: str = "auto"
    timeout: float = 600.0  # How long a rank waits for the others.
    partition_method: str = UNIFORM  # Which layers each stage has.
    export_timing_csv: str = ""  # The folder of the records; none without it.
    num_prof_steps: int = 0  # How many steps are recorded, the last ones. 0: all.

    @property
    def sizes(self):
        return sizes_of(self.model)

    def check(self):
        """BadLayout if the model or the batch does not fit."""
        self.layout.check(self.sizes, self.batch, self.micro_batch)
        partition(self.partition_method, self.layout.pipeline, self.sizes)

    def records(self, step):
        return self.export_timing_csv and (not self.num_prof_steps or step > self.steps - self.num_prof_steps)


def train(settings, tell):
    """Trains to `settings.steps`, as one of the layout's ranks. `tell(event, **values)` hears what happens."""
    import cairn
    import torch
    import torch.distributed as dist

    from . import state as states
    from .parallel import Trainer
    from .records import TRACE_EVENTS, Recording

    torch.set_num_threads(1)
    # Of the head, whose logits nobody changes in place; and of the digests, which gather whole tensors.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    device, group = join(settings.timeout)
    trainer = Trainer(settings, device)
    options = {"host_memory": settings.host_memory}
    options |= dict.fromkeys(("group_timeout", "close_timeout"), settings.timeout)
    recording = None
    if settings.export_timing_csv:
        recording = Recording(trainer, settings.export_timing_csv)
        options["trace_events"] = TRACE_EVENTS
    with cairn.Checkpointer(settings.root, group=group, **options) as checkpointer:

        def digest(event, state):
            if settings.digests:
                found = states.digests(state, group)
                if dist.get_rank() == 0:
                    tell(event, step=state["step"], digests=found)

        begun = 0
        if checkpointer.steps():
            states.gather(trainer)  # So that the optimizer's state is there before the restore begins.
            tell("ready", layers=list(trainer.model.layers))
            restored = states.restore(trainer, checkpointer, None, group)
            begun = restored.step
            tell("restored", step=begun, plan=restored.plan, read=restored.read)
            digest("holds", restored.state)
        else:
            trainer.initialize()
            tell("ready", layers=list(trainer.model.layers))
        checkpointer.protect(trainer.optimizer)
        pending = None
        for step in range(begun + 1, settings.steps + 1):
            with recording.step(step) if settings.records(step) else contextlib.nullcontext():
                loss = trainer.step(step)
            if trainer.tells_loss:
                tell("loss", step=step, loss=loss)
            if step == settings.steps or (settings.save_every and step % settings.save_every == 0):
                _finish(pending, tell)
                state = states.gather(trainer, step)
                digest("saves", state)
                dist.barrier(group)  # So that the time of a save is its own on every rank.
                tell("saving", step=step)
                pending = (step, time.monotonic(), states.start_save(checkpointer, step, state, group))
        _finish(pending, tell)
        if recording and begun < settings.steps:
            tell("recorded", files=recording.write(checkpointer, group))
        elif recording:  # The files may be those of these steps.
            tell("nothing_recorded", step=begun)
    dist.destroy_process_group()


def join(timeout):
    """Joins the job that the environment tells of, as torchrun sets it. This rank's device, and a group for saves, beside
    those that training uses."""
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    patience = datetime.timedelta(seconds=timeout)
    dist.init_process_group(backend, timeout=patience)
    return device, dist.new_group(backend="gloo", timeout=patience)


def _finish(pending, tell):
    if pending is not None:
        step, begun, response = pending
        response.upload_completion.result()
        tell("durable", step=step, seconds=time.monotonic() - begun)


HELP = {
    "layout": "pipeline, tensor and data parallel sizes, such as 4,2,2",
    "model": "tiny (default), small, xl, xl/8, or one known by name, such as gpt3-xl, bert-huge, bloom-3b or t5-3b; NAME/64 has its "
    "layers with a 64th of all widths",
    "partition_method": "which layers each pipeline stage has: uniform_transformer (default), or custom:0,3,4,7, where stages "
    "begin at these layers and the last number is how many there are, embeddings and the head included",
    "export_timing_csv": "at the end, write instructions-<rank>.csv, time-energy-<rank>.csv and trace.json there, in the place of "
    "an earlier run's; true, or without a folder: here",
    "num_prof_steps": "how many steps are recorded, the last ones; default: all",
}
CHOICES = {"data_parallel": ("replicate", "fully_shard"), "dtype": ("float32", "float64")}


def add_arguments(parser):
    for field in dataclasses.fields(Settings):
        flag, needed = f"--{field.name.replace('_', '-')}", field.default is dataclasses.MISSING
        if field.type is bool:
            parser.add_argument(flag, action="store_true")
            continue
        about = HELP.get(field.name, None if needed else f"default: {field.default}")
        options = {"nargs": "?", "const": "."} if field.name == "export_timing_csv" else {}
        kind = {"layout": str, "model": model_name}.get(field.name, field.type)
        if field.name in ("batch", "micro_batch", "learning_rate", "timeout"):
            kind = positive(kind)
        parser.add_argument(flag, type=kind, required=needed, default=None if needed else field.default,
                            choices=CHOICES.get(field.name), help=about, **options)  # fmt: skip


def with_dashes(words):
    """Options as Merak spells them, --num_prof_steps and --export_timing_csv true, as this program does."""
    words = [word.replace("_", "-") if re.fullmatch("--[a-z_]+", word) else word for word in words]
    for before, word in itertools.pairwise([*words]):
        if before == "--export-timing-csv" and word == "true":
            words.remove("true")
    return words


def main():
    parser = argparse.ArgumentParser(prog="cairn_bench.reconfigure.train", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add_arguments(parser)
    given = vars(parser.parse_args(with_dashes(sys.argv[1:])))
    try:
        given["layout"] = Layout.parse(given["layout"])
        settings = Settings(**given)
        settings.check()
        settings.layout.check_memory(settings.sizes, int(os.environ.get("LOCAL_WORLD_SIZE", settings.layout.world)))
    except BadLayout as error:
        parser.error(str(error))
    if settings.num_prof_steps < 0 or (settings.num_prof_steps and not settings.export_timing_csv):
        parser.error("--num-prof-steps: expected a number of steps, and --export-timing-csv, which says where to")
    if (ranks := os.environ.get("WORLD_SIZE", "none")) != str(settings.layout.world):
        wanted = f"torchrun --nproc-per-node {settings.layout.world} -m cairn_bench.reconfigure.train"
        parser.error(f"layout {settings.layout}: expected {settings.layout.world} ranks, as of {wanted}; found {ranks}")
    if settings.export_timing_csv:
        from .records import prepare

        try:
            prepare(settings.export_timing_csv)
        except OSError as error:
            parser.error(f"--export-timing-csv: {settings.export_timing_csv}: {error.strerror}")
    first = os.environ["RANK"] == "0"

    def tell(event, **values):
        if event == "loss":
            print(f"step {values['step']} loss {values['loss']:.6f}", flush=True)
        elif event in ("restored", "durable") and first:
            print(f"step {values['step']} {event}", flush=True)
        elif event == "nothing_recorded" and first:
            print(f"nothing recorded: no step is left after step {values['step']}", flush=True)

    train(settings, tell)


if __name__ == "__main__":
    main()
