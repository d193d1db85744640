from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("models")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Some tokens, as scripts/prepare-data writes them."""
    from models import LENGTH, SAMPLES, VOCABULARY, write_tokens  # Imported here, because it skips without torch.

    write_tokens(tmp_path / "text", SAMPLES * LENGTH, VOCABULARY)
    return tmp_path / "text"
