"""scripts/prepare-data squad: features hold the right answers; invalid SQuAD is refused with its place."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

tokenizers = pytest.importorskip("tokenizers")

PROGRAM = Path(__file__).parents[2] / "scripts/data/prepare.py"

# Written for this test in SQuAD's format; not taken from SQuAD.
CONTEXT = (
    "A cairn is a pile of stones. Hikers in the Höhe of the Alps build cairns where no path is seen, and in fog they "
    "walk from one to the next. Some cairns are older than the village below; nobody knows who built them."
)


def asked(number: str, question: str, answer: str | None) -> dict[str, Any]:
    if answer is None:
        return {"id": number, "question": question, "answers": [], "is_impossible": True, "plausible_answers": []}
    answers = [{"text": answer, "answer_start": CONTEXT.index(answer)}]
    return {"id": number, "question": question, "answers": answers, "is_impossible": False}


ANSWERS = {
    "first": ("What is a cairn?", "a pile of stones"),
    "accents": ("Who builds them, and where?", "Hikers in the Höhe of the Alps"),
    "last": ("Who built the old ones?", "nobody knows who built them"),
    "inside a word": ("In what?", "og"),
    "none": ("How high is a cairn?", None),
}


def a_squad() -> dict[str, Any]:
    qas = [asked(number, question, answer) for number, (question, answer) in ANSWERS.items()]
    return {"version": "v2.0", "data": [{"title": "Cairn", "paragraphs": [{"qas": qas, "context": CONTEXT}]}]}


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "squad", *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


class Feature(NamedTuple):
    tokens: list[str]
    context: int
    answer: tuple[int, int]
    # The answer's text.
    text: str


def features_in(out: Path) -> tuple[dict[str, Any], list[Feature]]:
    about = json.loads((out / "data.json").read_text())
    tokens = array({"u16": "H", "u32": "I"}[about["dtype"]], (out / "tokens.bin").read_bytes())
    places = array("I", (out / "features.bin").read_bytes())
    assert about["checksum"] == f"crc32:{zlib.crc32(tokens):08x}"
    assert about["features_checksum"] == f"crc32:{zlib.crc32(places):08x}"
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    features = []
    for i in range(0, len(places), 4):
        length, context, start, end = places[i : i + 4]
        ids = tokens[:length].tolist()
        text = tokenizer.decode(ids[start : end + 1])
        features.append(Feature([tokenizer.id_to_token(id) for id in ids], context, (start, end), text))
        tokens = tokens[length:]
    assert not tokens and about["features"] == len(features)
    return about, features


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(a_squad()))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return tmp_path / "made/out"


def test_a_question_and_its_context_are_one_feature_if_both_fit(source: Path, out: Path) -> None:
    assert prepare(source, out, "--vocabulary", 300).returncode == 0

    about, features = features_in(out)
    assert (about["kind"], about["sequence"], about["source"]) == ("questions", 384, [str(source)])
    assert about["special_tokens"] == {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    for feature in features:
        first = feature.tokens.index("[SEP]")
        assert feature.tokens[0] == "[CLS]" and feature.context == first + 1
        assert feature.tokens.index("[SEP]", first + 1) == len(feature.tokens) - 1
    assert [feature.text.replace(" ##", "") for feature in features] == [
        "a pile of stones",
        "hikers in the hohe of the alps",
        "nobody knows who built them",
        features[3].text,  # The tokens that the answer overlaps.
        "",
    ]
    assert "og" in features[3].text.replace(" ", "") and len(features[3].text) < 6
    assert features[4].answer == (0, 0)


def test_a_long_context_is_cut_into_overlapping_windows(source: Path, out: Path) -> None:
    sequence, stride = 28, 8
    assert prepare(source, out, "--vocabulary", 300, "--sequence", sequence, "--stride", stride).returncode == 0

    about, features = features_in(out)
    assert about["sequence"] == sequence
    windows: dict[str, list[Feature]] = {}
    for feature in features:
        windows.setdefault(" ".join(feature.tokens[: feature.context]), []).append(feature)
    assert len(windows) == len(ANSWERS)
    contexts = set()
    for (_, answer), parts in zip(ANSWERS.values(), windows.values(), strict=True):
        assert len(parts) > 2 and all(len(part.tokens) == sequence for part in parts[:-1])
        whole: list[str] = []
        for part in parts:
            words = part.tokens[part.context : -1]
            assert whole[-stride:] == words[:stride] if whole else True
            whole += words[stride if whole else 0 :]
            if part.answer != (0, 0):
                assert part.answer[0] >= part.context
        contexts.add(" ".join(whole))
        found = [part.text for part in parts if part.answer != (0, 0)]
        assert bool(found) == (answer is not None) and len(set(found)) <= 1
    assert len(contexts) == 1, "the windows of each question cover the same text"


def test_the_first_answer_is_used_without_surrounding_spaces(tmp_path: Path, out: Path) -> None:
    squad = a_squad()
    question = squad["data"][0]["paragraphs"][0]["qas"][0]
    at = CONTEXT.index(" a pile")
    question["answers"] = [{"text": " a pile ", "answer_start": at}, {"text": "stones", "answer_start": at + 11}]
    del question["is_impossible"]  # SQuAD 1.1 has no such field.
    (tmp_path / "squad.json").write_text(json.dumps(squad))

    assert prepare(tmp_path / "squad.json", out, "--vocabulary", 300).returncode == 0

    assert features_in(out)[1][0].text == "a pile"


def test_a_tokenizer_of_prepared_text_can_be_used(tmp_path: Path, source: Path, out: Path) -> None:
    (tmp_path / "text").write_text(CONTEXT)
    command = [sys.executable, PROGRAM, "text", tmp_path / "text", tmp_path / "pretrained", "--kind", "wordpiece"]
    subprocess.run(command, check=True)
    tokenizer = tmp_path / "pretrained/tokenizer.json"

    assert prepare(source, out, "--tokenizer", tokenizer).returncode == 0

    assert (out / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert features_in(out)[1][0].text == "a pile of stones"


def refused(why: str, source: Path, out: Path, *arguments: object) -> None:
    before = sorted(out.parent.iterdir())
    ran = prepare(source, out, *arguments)
    assert ran.returncode == 1 and why in ran.stderr and str(source) in ran.stderr, ran.stderr
    assert sorted(out.parent.iterdir()) == before, "files are left behind"


QUESTION = ["data", 0, "paragraphs", 0, "qas", 1]
ANSWER = [*QUESTION, "answers", 0]
ABSENT = object()


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        (["data"], ABSENT, "squad.json: data: expected a list, found none"),
        (["data"], [], "squad.json: data: expected a question, found none"),
        (["data", 0], 3, "squad.json: data[0]: expected an object, found 3"),
        (["data", 0, "paragraphs"], "x", 'data[0]: paragraphs: expected a list, found "x"'),
        (
            ["data", 0, "paragraphs", 0, "context"],
            ABSENT,
            "data[0].paragraphs[0]: context: expected a string, found none",
        ),
        (
            ["data", 0, "paragraphs", 0, "context"],
            "\ud800",
            "context: expected a string, found an unpaired surrogate (\\ud800)",
        ),
        ([*QUESTION, "id"], 7, "data[0].paragraphs[0].qas[1]: id: expected a string, found 7"),
        ([*QUESTION, "id"], "last", 'question "last": id: expected only one'),
        ([*QUESTION, "question"], ABSENT, 'question "accents": question: expected a string, found none'),
        ([*QUESTION, "answers"], ABSENT, 'question "accents": answers: expected a list, found none'),
        ([*QUESTION, "answers"], [], 'question "accents": answers: expected at least one, because is_impossible'),
        ([*QUESTION, "is_impossible"], "no", 'is_impossible: expected true or false, found "no"'),
        (ANSWER, [], 'question "accents": answers[0]: expected an object, found []'),
        ([*ANSWER, "answer_start"], "29", 'answers[0]: answer_start: expected an integer, found "29"'),
        ([*ANSWER, "answer_start"], True, "answers[0]: answer_start: expected an integer, found true"),
        ([*ANSWER, "answer_start"], 30, "text: expected 'ikers in the Höhe of the Alps ', which is at answer_start 30"),
        ([*ANSWER, "answer_start"], -1, "which is at answer_start -1"),
        ([*ANSWER, "answer_start"], 10**30, "which is at answer_start 1000000"),
        ([*ANSWER, "text"], "Mountaineers", "which is at answer_start 29, found 'Mountaineers'"),
        ([*ANSWER, "text"], " ", "answers[0]: text: expected more than spaces"),
        ([*QUESTION, "question"], "so " * 400, 'question "accents": question: expected at most 252 tokens'),
    ],
)
def test_invalid_squad_is_refused_naming_question_and_field(
    tmp_path: Path, out: Path, where: list[Any], value: Any, why: str
) -> None:
    squad = copy.deepcopy(a_squad())
    *path, last = where
    at: Any = squad
    for key in path:
        at = at[key]
    if value is ABSENT:
        del at[last]
    else:
        at[last] = value
    (tmp_path / "squad.json").write_text(json.dumps(squad))

    refused(why, tmp_path / "squad.json", out)


def test_invalid_json_is_refused_with_its_place(tmp_path: Path, source: Path, out: Path) -> None:
    whole = source.read_bytes()

    def refused_with(content: bytes, why: str) -> None:
        source.write_bytes(content)
        refused(f"squad.json: {why}", source, out)

    refused_with(whole[:-5], "invalid JSON: Expecting")
    refused_with(b"[" * 100_000, "invalid JSON: ")
    refused_with(b"[]", "expected an object, found []")
    refused_with(whole[:20] + b"\xff" + whole[20:], "byte 20: not UTF-8 (0xff)")
    refused("No such file", tmp_path / "nowhere.json", out)


def without(*names: str) -> Callable[[Any], None]:
    def change(tokenizer: Any) -> None:
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] not in names]
        for name in names:
            del tokenizer["model"]["vocab"][name]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("[PAD]"), "expected a tokenizer with [PAD], found none"),
        (
            lambda tokenizer: tokenizer.update(post_processor=None),
            "expected [CLS] question [SEP] context [SEP]",
        ),
    ],
    ids=["special", "frame"],
)
def test_a_tokenizer_unlike_berts_is_refused(
    tmp_path: Path, source: Path, out: Path, change: Callable[[Any], None], why: str
) -> None:
    assert prepare(source, tmp_path / "first", "--vocabulary", 300).returncode == 0
    tokenizer = json.loads((tmp_path / "first/tokenizer.json").read_text())
    change(tokenizer)
    (tmp_path / "other.json").write_text(json.dumps(tokenizer))

    ran = prepare(source, out, "--tokenizer", tmp_path / "other.json")

    assert ran.returncode == 1 and why in ran.stderr and not out.exists(), ran.stderr


def test_windows_that_are_too_small_are_refused(source: Path, out: Path) -> None:
    assert prepare(source, out, "--sequence", 100, "--stride", 96).returncode == 2
    assert prepare(source, out, "--stride", -1).returncode == 2


def test_an_answer_may_end_in_characters_that_the_tokenizer_drops(tmp_path: Path, out: Path) -> None:
    squad = a_squad()
    [paragraph] = squad["data"][0]["paragraphs"]
    paragraph["context"] = "The cairn stands beside the cafe\u0301"
    paragraph["qas"] = [
        {"id": "1", "question": "Where?", "answers": [{"text": "beside the cafe\u0301", "answer_start": 17}]}
    ]
    (tmp_path / "squad.json").write_text(json.dumps(squad))

    ran = prepare(tmp_path / "squad.json", out, "--vocabulary", 300)

    assert ran.returncode == 0, ran.stderr
    assert features_in(out)[1][0].text.replace(" ##", "") == "beside the cafe"
