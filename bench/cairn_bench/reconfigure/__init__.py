"""A job that changes its shape: a GPT under pipeline, tensor and data parallelism, saved by one layout of ranks and
restored by another. Only PyTorch's own parallelism; the checkpoints are cairn.dcp's.

layout   (pipeline, tensor, data) parallel sizes, and Tenplex's schedule of them
sizes    the models
model    GPT, BLOOM, BERT, T5: the part that one pipeline stage has
data     what it learns
parallel a rank's part of it, ready to train
state    what a checkpoint holds: save, restore, digests
train    one rank, as torchrun starts it
run      a node's ranks, as Merak's run.sh starts them
jobs     all ranks of a job on this machine, without torchrun
replay   the schedule, job by job: scripts/figures tenplex
measure  beside DCP's own files and one rank that gathers all: scripts/bench reconfigure
instructions  when each instruction of a stage runs
energy   what a rank's GPU or its host has used
records  the files of both, with what Cairn did meanwhile
perfetto the same of all ranks as one trace
overhead what recording costs: scripts/bench records
faults   ranks killed while they save and restore
"""
