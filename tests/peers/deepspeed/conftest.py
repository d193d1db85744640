"""DeepSpeed reads these when it is imported."""

import os
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
# It compiles its shared-memory operations once: a minute or more.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(__file__).parents[3] / "build/python/peers/extensions"))
