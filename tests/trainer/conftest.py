from __future__ import annotations

import json
import random
import zlib
from array import array
from pathlib import Path

import pytest

pytest.register_assert_rewrite("models")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Some tokens, as scripts/prepare-data writes them."""
    from models import LENGTH, SAMPLES, VOCABULARY  # Here: it skips where torch is not there.

    tokens = array("H", random.Random(2).choices(range(VOCABULARY), k=SAMPLES * LENGTH))
    about = {"kind": "text", "dtype": "u16", "tokens": len(tokens), "vocabulary": VOCABULARY}
    (tmp_path / "text").mkdir()
    (tmp_path / "text/tokens.bin").write_bytes(tokens.tobytes())
    (tmp_path / "text/data.json").write_text(json.dumps(about | {"checksum": f"crc32:{zlib.crc32(tokens):08x}"}))
    return tmp_path / "text"
