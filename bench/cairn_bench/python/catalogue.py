"""The systems that can be measured: where their code is, and what they need from PyPI."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    name: str
    module: str  # Under systems/.
    kind: str
    needs: tuple[str, ...] = ()  # Packages beside torch, numpy and safetensors.
    processes: bool = False  # Starts other processes.
    fsync_added: bool = False

    @property
    def title(self):
        return self.name + (" +" if self.fsync_added else "")


_SNAPSHOT = ("torchsnapshot", "aiofiles", "importlib-metadata<9", "zipp", "nest-asyncio", "psutil", "PyYAML")
_MANAGER = ("torch_checkpointing",)

CAIRN = Entry("cairn", "cairn_api", "Cairn")
CAIRN_WHOLE = Entry("cairn-whole", "cairn_api", "CairnWhole")
PEERS = (
    Entry("torch.save", "plain", "TorchSave", fsync_added=True),
    Entry("safetensors", "plain", "Safetensors", fsync_added=True),
    Entry("dcp.save", "dcp", "Save"),
    Entry("dcp.async_save", "dcp", "AsyncSave"),
    Entry("dcp.async_save-kept-stager", "dcp", "AsyncSaveKeptStager"),
    Entry("dcp.save-huggingface", "dcp", "HuggingFace"),
    Entry("torchsnapshot.take", "snapshot", "Take", _SNAPSHOT, fsync_added=True),
    Entry("torchsnapshot.async_take", "snapshot", "AsyncTake", _SNAPSHOT, fsync_added=True),
    Entry("torch_checkpointing", "manager", "Manager", _MANAGER, processes=True, fsync_added=True),
    Entry("torch_checkpointing-buffered", "manager", "BufferedManager", _MANAGER, processes=True, fsync_added=True),
)
SYSTEMS = {entry.name: entry for entry in (CAIRN, CAIRN_WHOLE, *PEERS)}
