"""scripts/prepare-data: the tokens decode to the text again, and OUT is created atomically."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")

PROGRAM = Path(__file__).parents[2] / "scripts/data/prepare.py"
LICENCES = Path("/usr/share/common-licenses")


def prepare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, capture_output=True)


def prepared(out: Path) -> tuple[dict[str, Any], array[int], Any]:
    about = json.loads((out / "data.json").read_text())
    tokens = array({"u16": "H", "u32": "I"}[about["dtype"]], (out / "tokens.bin").read_bytes())
    return about, tokens, tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))


def refused(why: str, out: Path, *arguments: object) -> None:
    before = sorted(out.parent.iterdir())
    ran = prepare(*arguments)
    assert ran.returncode == 1 and why in ran.stderr, ran.stderr
    assert sorted(out.parent.iterdir()) == before, "something is left behind"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return tmp_path / "made/out"


def test_tokens_decode_to_the_text_document_by_document(tmp_path: Path, out: Path) -> None:
    texts = {"a": "Grüße, \n\n  and   spaces\n", "b/c": "€uro 日本 \x00 end", "d": ""}
    for name, text in texts.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text, encoding="utf-8")
    (tmp_path / "in/link").symlink_to("a")  # A second link to the same file counts once.

    assert prepare("text", tmp_path / "in", out).returncode == 0

    about, tokens, tokenizer = prepared(out)
    begin = tokenizer.token_to_id("</s>")
    assert begin == 2 and tokens[0] == begin and tokens.tolist().count(begin) == 3
    assert tokenizer.decode(tokens.tolist()) == "".join(texts.values())
    assert about == {
        "kind": "text",
        "dtype": "u16",
        "tokens": len(tokens),
        "vocabulary": tokenizer.get_vocab_size(),
        "checksum": f"crc32:{zlib.crc32(tokens):08x}",
        "source": [str(tmp_path / "in")],
        "tokenizer": "tokenizer.json",
    }


def test_a_vocabulary_has_the_given_size_and_is_deterministic(out: Path) -> None:
    assert prepare("text", LICENCES, out, "--vocabulary", 700).returncode == 0
    assert prepare("text", LICENCES, f"{out}-again", "--vocabulary", 700).returncode == 0

    about, tokens, _ = prepared(out)
    assert about["vocabulary"] == 700 and max(tokens) < 700
    again = Path(f"{out}-again")
    assert (again / "tokens.bin").read_bytes() == (out / "tokens.bin").read_bytes()


def test_wordpiece_is_berts_and_deterministic(out: Path) -> None:
    for folder in (out, f"{out}-again"):
        assert prepare("text", LICENCES, folder, "--kind", "wordpiece", "--vocabulary", 700).returncode == 0

    about, tokens, tokenizer = prepared(out)
    special = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    assert about["special_tokens"] == special and about["vocabulary"] == 700
    assert tokens.tolist().count(2) == tokens.tolist().count(3) > 10, "documents are framed"
    assert 1 not in tokens
    for file in ("tokens.bin", "tokenizer.json"):
        assert (Path(f"{out}-again") / file).read_bytes() == (out / file).read_bytes()
    pair = tokenizer.encode("The LICENCE, [MASK]", "ünïque 日")
    assert pair.tokens[-1] == "[SEP]" and pair.tokens[-2] == "[UNK]"
    assert "[MASK]" in pair.tokens and pair.type_ids.index(1) == pair.tokens.index("[SEP]") + 1
    assert tokenizer.decode(pair.ids) == "the licence, unique"


def test_a_given_tokenizer_is_used_unchanged(tmp_path: Path, out: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"no": 0, "yes": 70000}, unk_token="no"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(1)
    words.save(str(tmp_path / "words.json"))
    (tmp_path / "text").write_text("yes no maybe yes")

    assert prepare("text", tmp_path / "text", out, "--tokenizer", tmp_path / "words.json").returncode == 0

    about, tokens, _ = prepared(out)
    assert tokens.tolist() == [70000, 0, 0, 70000]
    assert (about["dtype"], about["vocabulary"]) == ("u32", 70001)


def test_invalid_utf8_is_refused_naming_file_and_byte(tmp_path: Path, out: Path) -> None:
    (tmp_path / "good").write_text("good")
    (tmp_path / "bad").write_bytes(b"good so far \xff no more")

    refused("bad: byte 12: not UTF-8 (0xff)", out, "text", tmp_path / "good", tmp_path / "bad", out)


def test_bad_arguments_are_refused_by_name(tmp_path: Path, out: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "empty").mkdir()

    refused("nowhere: no such file or folder", out, "text", tmp_path / "nowhere", out)
    refused("empty: contains no files", out, "text", tmp_path / "empty", out)
    refused("text: not a tokenizer: ", out, "text", tmp_path / "text", out, "--tokenizer", tmp_path / "text")
    out.mkdir()
    refused("out: already exists", out, "text", tmp_path / "text", out)
    assert prepare("text", tmp_path / "text", out, "--vocabulary", 259).returncode == 2


def test_words_are_split_at_whitespace_and_numbered_by_frequency(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a").write_text("the <unk> cat\n\n the\tthe cat don't")
    (tmp_path / "b").write_text("\n the <eos> \u3000 €\n")

    assert prepare("text", tmp_path / "a", tmp_path / "b", out, "--kind", "word").returncode == 0

    about, tokens, tokenizer = prepared(out)
    words = "the <unk> cat <eos> <eos> the the cat don't <eos> <eos> the <eos> € <eos>"
    assert " ".join(map(tokenizer.id_to_token, tokens)) == words
    assert " ".join(map(tokenizer.id_to_token, range(about["vocabulary"]))) == "<unk> <eos> the cat don't €"


def test_words_beyond_the_vocabulary_are_unknown(tmp_path: Path, out: Path) -> None:
    (tmp_path / "text").write_text("b a b c a b")

    assert prepare("text", tmp_path / "text", out, "--kind", "word", "--vocabulary", 4).returncode == 0

    about, tokens, _ = prepared(out)
    assert about["vocabulary"] == 4 and tokens.tolist() == [2, 3, 2, 0, 3, 2, 1]
    assert prepare("text", tmp_path / "text", f"{out}2", "--kind", "word", "--vocabulary", 2).returncode == 2
    assert prepare("text", tmp_path / "text", f"{out}2", "--tokenizer", out, "--vocabulary", 9).returncode == 2


LINES = [
    *("", "= Tea =", "", "Tea is a drink .", "= Not a heading =", "", "= = Kinds = =", "", "Green <unk> .", "", ""),
    *("= E = m c ² =", "", "Energy ."),
]
WIKITEXT = "".join(f" {line} \n" if line else " \n" for line in LINES)


def test_each_wikitext_article_is_a_document(tmp_path: Path, out: Path) -> None:
    (tmp_path / "wiki.valid.tokens").write_text(WIKITEXT)

    ran = prepare("wikitext", tmp_path, out, "--split", "valid")

    assert ran.returncode == 0 and ": 2 documents, " in ran.stdout
    about, tokens, tokenizer = prepared(out)
    beginning, *articles = tokenizer.decode(tokens.tolist(), skip_special_tokens=False).split("</s>")
    assert beginning == "" and "".join(articles) == WIKITEXT
    assert len(articles) == 2 and articles[1].startswith(" = E = m c ² = ")
    assert about["source"] == [str(tmp_path / "wiki.valid.tokens")]


def test_one_splits_tokenizer_works_for_another(tmp_path: Path, out: Path) -> None:
    (tmp_path / "wiki.train.tokens").write_text(WIKITEXT)
    (tmp_path / "wiki.test.tokens").write_text(" \n = Coffee = \n \n is a drink . \n")
    assert prepare("wikitext", tmp_path, out, "--kind", "word").returncode == 0
    train = prepared(out)[2]

    test = Path(f"{out}-test")
    ran = prepare("wikitext", tmp_path, test, "--split", "test", "--tokenizer", out / "tokenizer.json")

    assert ran.returncode == 0, ran.stderr
    words = " ".join(map(train.id_to_token, prepared(test)[1]))
    assert words == "<eos> = <unk> = <eos> <eos> is a drink . <eos>"


def test_invalid_wikitext_is_refused_naming_file_and_line(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "wiki.train.tokens"
    refused(f"{path}: no such file", out, "wikitext", tmp_path, out)

    for content, why in {
        b" \n Tea is a drink . \n": "line 2: expected an article's \" = Title = \", found ' Tea is a drink . \\n'",
        b" = = Kinds = = \n": "line 1: expected an article's",
        b" = Tea = \n \n Gr\xfcn \n": "line 3: not UTF-8 (0xfc)",
        b" \n": "contains no article",
    }.items():
        path.write_bytes(content)
        refused(f"{path}: {why}", out, "wikitext", tmp_path, out)


def test_links_and_names_that_are_not_utf8_work(tmp_path: Path, out: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "corpus/a.txt").write_text("one\n")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/elsewhere/caf\xe9")).write_text("two\n")
    (tmp_path / "corpus/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "corpus")

    ran = prepare("text", tmp_path / "corpus", out)

    assert ran.returncode == 0 and ": 2 documents, " in ran.stdout, ran.stderr
    assert [tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).decode(prepared(out)[1].tolist())] == [
        "one\ntwo\n"
    ]


def test_a_tokenizer_that_cannot_encode_the_text_is_refused(tmp_path: Path, out: Path) -> None:
    (tmp_path / "text").write_text("one two")
    unknown = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordPiece({"one": 0}, unk_token="[UNK]")).save(str(unknown))
    refused("the tokenizer cannot encode 'one two': ", out, "text", tmp_path / "text", out, "--tokenizer", unknown)
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(unknown))
    refused(
        f"{unknown}: not a tokenizer: empty vocabulary", out, "text", tmp_path / "text", out, "--tokenizer", unknown
    )
