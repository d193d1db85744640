"""scripts/prepare-data pictures: packs a folder of pictures into two files that the trainer reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import ROOT, run

Image = pytest.importorskip("PIL.Image")

PROGRAM = ROOT / "scripts/data/prepare.py"


def prepare(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "pictures", str(folder), str(out)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven pictures of three classes with unordered names, and other files."""
    root = tmp_path / "imagenet/train"
    for number, name in enumerate(
        ("n3/b.JPEG", "n1/a.jpg", "n1/ä.jpeg", "n1/B.JPEG", "n2/x.JPEG", "n3/a.JPEG", "n3/z.jpg")
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((240 + 10 * number, 230), 40 + 10 * number).convert("RGB").save(path, "JPEG")
    (root / "n1/README").write_text("no picture")
    (root / "LICENSE").write_text("no class")
    return tmp_path / "imagenet"


def train(data: Path, *flags: object, batch: int = 2) -> subprocess.CompletedProcess[str]:
    return run("cairn_train", "--model", "vgg16", "--size", "width=1", "--data", data, "--batch", batch, *flags)


def test_the_trainer_learns_from_them(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prepare(folder, out).stdout == f"{out}: 7 pictures of 3 classes\n"

    assert json.loads((out / "data.json").read_text())["class_names"] == ["n1", "n2", "n3"]
    assert sorted(path.name for path in out.iterdir()) == ["data.json", "index.bin", "pictures.bin"]
    ran = train(out, "--steps", 5)
    assert ran.returncode == 0 and ran.stdout.count("loss=") == 5, ran.stderr


def test_a_picture_is_scaled_and_cropped_to_its_centre(tmp_path: Path) -> None:
    path = tmp_path / "in/n1/a.jpeg"
    path.parent.mkdir(parents=True)
    wide = Image.new("RGB", (1024, 512), (250, 0, 0))
    wide.paste((0, 250, 0), (512 - 220, 0, 512 + 220, 512))  # The crop keeps 448 of 1024 pixels, from 288 on.
    wide.save(path, "JPEG", quality=100)
    Image.new("L", (60, 40), 128).save(path.with_name("b.jpeg"), "JPEG", quality=100)

    assert prepare(tmp_path / "in", tmp_path / "out").returncode == 0

    first, second = np.fromfile(tmp_path / "out/pictures.bin", np.uint8).reshape(2, 224, 224, 3).astype(int)
    assert abs(first[:, 4:220] - (0, 250, 0)).max() < 8 and abs(first[:, [0, 223]] - (250, 0, 0)).max() < 8
    assert abs(second - 128).max() < 3


def test_a_run_resumes_only_with_the_same_pictures(folder: Path, tmp_path: Path) -> None:
    resuming = ("--checkpoint-dir", tmp_path / "run", "--resume")
    prepare(folder, tmp_path / "a")
    assert train(tmp_path / "a", "--steps", 1, *resuming).returncode == 0
    (tmp_path / "a").rename(tmp_path / "b")
    assert train(tmp_path / "b", "--steps", 2, *resuming).returncode == 0

    (folder / "train/n2/x.JPEG").rename(folder / "train/n1/x.JPEG")
    prepare(folder, tmp_path / "c")

    ran = train(tmp_path / "c", "--steps", 3, *resuming)
    assert ran.returncode == 1 and "the checkpoint's data is \"pictures crc32:" in ran.stderr, ran.stderr


def test_pictures_that_are_not_packed_are_refused(folder: Path) -> None:
    ran = train(folder, "--steps", 1)
    assert ran.returncode == 1 and "made by scripts/prepare-data, found a folder without data.json" in ran.stderr


def test_out_may_be_inside_the_source(folder: Path) -> None:
    out = folder / "train/packed"
    assert prepare(folder, out).stdout == f"{out}: 7 pictures of 3 classes\n"


def test_an_invalid_picture_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    def refused(why: str, source: Path = folder) -> None:
        before = sorted(tmp_path.iterdir())
        ran = prepare(source, tmp_path / "out")
        assert ran.returncode == 1 and why in ran.stderr, ran.stderr
        assert sorted(tmp_path.iterdir()) == before, "something is left behind"

    path = folder / "train/n2/x.JPEG"
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(broken)
        refused("n2/x.JPEG: not a valid JPEG picture")
    Image.new("L", (8001, 8000)).save(path, "JPEG")
    refused("n2/x.JPEG: not a valid JPEG picture: more than 64000000 pixels")
    path.write_bytes(whole)
    refused("n1: expected CLASS/PICTURE.JPEG, found 0 folders", folder / "train/n1")
    refused("nowhere: no such folder", folder / "nowhere")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: (at / "pictures.bin").write_bytes(b"x"), "pictures.bin: expected 7 pictures of 150528 bytes"),
        (lambda at: flip(at / "pictures.bin"), "pictures.bin: picture 0: its checksum differs from index.bin's"),
        (lambda at: flip(at / "index.bin"), "data.json: checksum: expected crc32:"),
        (lambda at: (at / "index.bin").write_bytes(bytes(15)), "index.bin: expected 7 pictures of 8 bytes"),
        (lambda at: (at / "index.bin").unlink(), "index.bin: cannot read"),
        (lambda at: about(at, classes=2), "index.bin: "),
        (lambda at: about(at, side=32), "data.json: side: expected 224, found 32"),
        (lambda at: about(at, pictures=8), "index.bin: expected 8 pictures of 8 bytes"),
        (lambda at: about(at, pictures=0), "data.json: pictures: expected at least 1, found 0"),
        (lambda at: about(at, classes=(1 << 64) - 1), "data.json: classes: expected at most 2147483647, found 1844674"),
    ],
    ids=["cut", "damaged", "index-damaged", "index-cut", "index-gone", "classes", "side", "count", "none", "many"],
)
def test_damaged_files_are_refused(folder: Path, tmp_path: Path, change: Callable[[Path], None], why: str) -> None:
    out = tmp_path / "out"
    prepare(folder, out)
    change(out)

    ran = train(out, "--steps", 1, batch=7)

    assert ran.returncode == 1 and str(out) in ran.stderr and why in ran.stderr, ran.stderr
    assert "step=" not in ran.stdout


def test_a_text_model_refuses_pictures(folder: Path, tmp_path: Path) -> None:
    prepare(folder, tmp_path / "out")

    ran = run("cairn_train", "--model", "opt-125m", "--data", tmp_path / "out")

    assert ran.returncode == 1 and "out: expected text for this model, found pictures" in ran.stderr


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


def about(out: Path, **changed: object) -> None:
    path = out / "data.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
