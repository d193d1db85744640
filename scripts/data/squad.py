"""Reads SQuAD's JSON, 1.1 or 2.0, and cuts it into features: [CLS] question [SEP] context [SEP], with the answer's place.

A context too long for one feature is cut into several that overlap. The answer of one that does not hold all of it, and
of a question that has none, is [CLS] itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sources import Refused
from tokenizers import Tokenizer
from tokenizing import encode

LEAST_ROOM = len("C?SaS")  # [CLS], a question of one token, [SEP], one of the context, [SEP].


class Question(NamedTuple):
    where: str  # For what is said of it.
    question: str
    context: str
    answer: tuple[int, int] | None  # Of the context's characters, the last one excluded.


class Feature(NamedTuple):
    ids: list[int]
    context: int  # Where the context begins; what lies before it is of type 0.
    start: int
    end: int  # The answer's last token.


def take(where: str, of: Any, key: str, kind: type[Any], *absent: Any) -> Any:
    """of[key], which must be of the kind; or `absent`, if given, where there is none."""
    name = {str: "a text", int: "a whole number", list: "a list", bool: "true or false"}[kind]
    if not isinstance(of, dict):
        raise Refused(f"{where}: expected an object, found {json.dumps(of)[:40]}")
    if key not in of:
        if absent:
            return absent[0]
        raise Refused(f"{where}: {key}: expected {name}, found none")
    value = of[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused(f"{where}: {key}: expected {name}, found {json.dumps(value)[:40]}")
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            found = f"half a character (\\u{ord(value[error.start]):04x})"
            raise Refused(f"{where}: {key}: expected a text, found {found} as its character {error.start}") from None
    return value


def answer_of(where: str, question: Any, context: str) -> tuple[int, int] | None:
    """The first of its answers, as is usual in training, without space at either end."""
    answers = take(where, question, "answers", list)
    if take(where, question, "is_impossible", bool, False):
        return None
    if not answers:
        raise Refused(f"{where}: answers: expected at least one, as it is not is_impossible, found none")
    where += ": answers[0]"
    start, text = take(where, answers[0], "answer_start", int), take(where, answers[0], "text", str)
    if not text.strip():
        raise Refused(f"{where}: text: expected more than space, found {json.dumps(text)}")
    found = context[max(start, 0) :][: len(text)]
    if start < 0 or found != text:
        raise Refused(f"{where}: text: expected {found!r}, which is at answer_start {start}, found {text!r}")
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def questions_of(path: Path, text: str) -> Iterator[Question]:
    try:
        squad = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: no JSON: {error}") from None
    seen: set[str] = set()
    for i, article in enumerate(take(str(path), squad, "data", list)):
        for k, paragraph in enumerate(take(f"{path}: data[{i}]", article, "paragraphs", list)):
            where = f"{path}: data[{i}].paragraphs[{k}]"
            context = take(where, paragraph, "context", str)
            for j, question in enumerate(take(where, paragraph, "qas", list)):
                number = take(f"{where}.qas[{j}]", question, "id", str)
                asked = f'{path}: question "{number}"'
                if number in seen:
                    raise Refused(f"{asked}: id: expected it once, found it again in data[{i}].paragraphs[{k}]")
                seen.add(number)
                words = take(asked, question, "question", str)
                yield Question(asked, words, context, answer_of(asked, question, context))
    if not seen:
        raise Refused(f"{path}: data: expected a question, found none")


def texts_of(questions: list[Question]) -> Iterator[str]:
    """Each question, and each context once."""
    yield from (question.question for question in questions)
    yield from dict.fromkeys(question.context for question in questions)


def features_of(tokenizer: Tokenizer, question: Question, sequence: int, stride: int) -> Iterator[Feature]:
    """The tokenizer must know [CLS] and [SEP]. Changes where it truncates."""
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    # Said here, where the question is known; the tokenizer would end the process.
    tokenizer.no_truncation()
    asked = len(encode(tokenizer, question.question, special=False).ids)
    most = sequence - stride - LEAST_ROOM + 1
    if asked > most:
        raise Refused(
            f"{question.where}: question: expected at most {most} tokens, as a feature has {sequence} and each overlaps "
            f"the next by {stride}, found {asked}"
        )
    tokenizer.enable_truncation(sequence, stride=stride, strategy="only_second")
    whole = encode(tokenizer, question.question, question.context)
    windows = [whole, *whole.overflowing]
    for place, window in enumerate(windows):
        context = asked + 2
        frame = [window.ids[0], window.ids[context - 1], window.ids[-1]]
        if frame != [cls, sep, sep] or window.type_ids != [0] * context + [1] * (len(window.ids) - context):
            raise Refused(
                f"{question.where}: expected [CLS] question [SEP] context [SEP] of the tokenizer, of types 0 and 1, "
                f"found {window.tokens}"
            )
        # Of signs that the tokenizer drops, at the context's begin or end, no token tells.
        first, last = place == 0, place == len(windows) - 1
        yield Feature(window.ids, context, *answer_in(window, context, question, first, last))


def answer_in(window: Any, context: int, question: Question, first: bool, last: bool) -> tuple[int, int]:
    """The first and the last token that the answer reaches into."""
    offsets = window.offsets[context:-1]
    if question.answer is None or not offsets:
        return 0, 0
    start, end = question.answer
    if (start < offsets[0][0] and not first) or (end > offsets[-1][1] and not last):
        return 0, 0
    within = [place for place, (begin, behind) in enumerate(offsets, context) if begin < end and behind > start]
    if not within:
        raise Refused(f"{question.where}: answers[0]: text: expected a token of it, found none")
    return within[0], within[-1]
