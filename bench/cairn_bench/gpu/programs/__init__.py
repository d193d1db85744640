"""Programs of the steps that import torch and cairn, each run in fresh processes. They print lines of JSON."""
