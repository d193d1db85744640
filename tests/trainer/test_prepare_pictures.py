"""scripts/prepare-data pictures: the pictures of a folder in two files, from which the trainer learns the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from models import ROOT, run

Image = pytest.importorskip("PIL.Image")

PROGRAM = ROOT / "scripts/data/prepare.py"


def prepare(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "pictures", str(folder), str(out)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven pictures of three classes, the names in no order, and what is none of them."""
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


def losses(data: Path) -> list[str]:
    ran = run("cairn_train", "--model", "vgg16", "--size", "width=1", "--data", data, "--batch", 2, "--steps", 5)
    assert ran.returncode == 0, ran.stderr
    return [word for line in ran.stdout.splitlines() for word in line.split() if word.startswith("loss=")]


def test_the_trainer_learns_from_them_as_from_the_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prepare(folder, out).stdout == f"{out}: 7 pictures of 3 classes\n"

    assert json.loads((out / "data.json").read_text())["class_names"] == ["n1", "n2", "n3"]
    assert sorted(path.name for path in out.iterdir()) == ["data.json", "index.bin", "pictures.bin"]
    assert losses(out) == losses(folder)


def test_they_may_be_packed_beside_their_classes(folder: Path) -> None:
    out = folder / "train/packed"
    assert prepare(folder, out).stdout == f"{out}: 7 pictures of 3 classes\n"


def test_what_is_no_picture_is_refused_by_its_name(folder: Path, tmp_path: Path) -> None:
    def refused(why: str, source: Path = folder) -> None:
        before = sorted(tmp_path.iterdir())
        ran = prepare(source, tmp_path / "out")
        assert ran.returncode == 1 and why in ran.stderr, ran.stderr
        assert sorted(tmp_path.iterdir()) == before, "something is left behind"

    path = folder / "train/n2/x.JPEG"
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(broken)
        refused("n2/x.JPEG: not a sound JPEG picture")
    Image.new("L", (8001, 8000)).save(path, "JPEG")
    refused("n2/x.JPEG: not a sound JPEG picture: more than 64000000 pixels")
    path.write_bytes(whole)
    refused("n1: expected CLASS/PICTURE.JPEG in it, found 0 folders", folder / "train/n1")
    refused("nowhere: no such folder", folder / "nowhere")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: (at / "pictures.bin").write_bytes(b"x"), "pictures.bin: expected the "),
        (lambda at: flip(at / "pictures.bin"), "pictures.bin: picture 0: expected the checksum of index.bin"),
        (lambda at: flip(at / "index.bin"), "data.json: checksum: expected crc32:"),
        (lambda at: (at / "index.bin").write_bytes(bytes(15)), "index.bin: expected the 7 pictures of 16 bytes"),
        (lambda at: (at / "index.bin").unlink(), "index.bin: cannot be read"),
        (lambda at: about(at, classes=2), "index.bin: "),
        (lambda at: about(at, pictures=8), "index.bin: expected the 8 pictures of 16 bytes"),
        (lambda at: about(at, pictures=0), "data.json: pictures: expected at least 1, found 0"),
        (lambda at: about(at, classes=(1 << 64) - 1), "data.json: classes: expected at most 2147483647, found 1844674"),
    ],
    ids=["cut", "damaged", "index-damaged", "index-cut", "index-gone", "classes", "count", "none", "many-classes"],
)
def test_files_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    out = tmp_path / "out"
    prepare(folder, out)
    change(out)

    ran = run("cairn_train", "--model", "vgg16", "--data", out, "--batch", 7, "--steps", 1)

    assert ran.returncode == 1 and str(out) in ran.stderr and why in ran.stderr, ran.stderr
    assert "step=" not in ran.stdout


def test_a_model_of_text_refuses_them(folder: Path, tmp_path: Path) -> None:
    prepare(folder, tmp_path / "out")

    ran = run("cairn_train", "--model", "opt-125m", "--data", tmp_path / "out")

    assert ran.returncode == 1 and "out: expected text, which the model learns from, found pictures" in ran.stderr


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


def about(out: Path, **changed: object) -> None:
    path = out / "data.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
