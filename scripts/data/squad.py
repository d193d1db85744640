"""Reads SQuAD's JSON, 1.1 or 2.0, and cuts it into features: [CLS] question [SEP] context [SEP], with answer positions.

A context too long for one feature is cut into several that overlap. The answer is [CLS] itself for a feature that lacks
the whole answer, and for a question without an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from arguments import MIN_ROOM
from sources import InvalidInput
from tokenizers import Tokenizer
from tokenizing import encode


class Question(NamedTuple):
    # For error messages.
    where: str
    question: str
    context: str
    # The range of the context's characters, end excluded.
    answer: tuple[int, int] | None


class Feature(NamedTuple):
    ids: list[int]
    # The context's first token; tokens before it have type 0.
    context: int
    start: int
    # The answer's last token.
    end: int


def take(where: str, of: Any, key: str, kind: type[Any], *absent: Any) -> Any:
    """Returns of[key], which must have this type; or `absent`, if given, for a missing key."""
    name = {str: "a string", int: "an integer", list: "a list", bool: "true or false"}[kind]
    if not isinstance(of, dict):
        raise InvalidInput(f"{where}: expected an object, found {json.dumps(of)[:40]}")
    if key not in of:
        if absent:
            return absent[0]
        raise InvalidInput(f"{where}: {key}: expected {name}, found none")
    value = of[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(f"{where}: {key}: expected {name}, found {json.dumps(value)[:40]}")
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            found = f"an unpaired surrogate (\\u{ord(value[error.start]):04x})"
            raise InvalidInput(f"{where}: {key}: expected a string, found {found} at character {error.start}") from None
    return value


def answer_of(where: str, question: Any, context: str) -> tuple[int, int] | None:
    """The first answer, as usual in training, without surrounding spaces."""
    answers = take(where, question, "answers", list)
    if take(where, question, "is_impossible", bool, False):
        return None
    if not answers:
        raise InvalidInput(f"{where}: answers: expected at least one, because is_impossible is false, found none")
    where += ": answers[0]"
    start, text = take(where, answers[0], "answer_start", int), take(where, answers[0], "text", str)
    if not text.strip():
        raise InvalidInput(f"{where}: text: expected more than spaces, found {json.dumps(text)}")
    found = context[max(start, 0) :][: len(text)]
    if start < 0 or found != text:
        raise InvalidInput(f"{where}: text: expected {found!r}, which is at answer_start {start}, found {text!r}")
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def questions_of(path: Path, text: str) -> Iterator[Question]:
    try:
        squad = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: invalid JSON: {error}") from None
    seen: set[str] = set()
    for i, article in enumerate(take(str(path), squad, "data", list)):
        for k, paragraph in enumerate(take(f"{path}: data[{i}]", article, "paragraphs", list)):
            where = f"{path}: data[{i}].paragraphs[{k}]"
            context = take(where, paragraph, "context", str)
            for j, question in enumerate(take(where, paragraph, "qas", list)):
                number = take(f"{where}.qas[{j}]", question, "id", str)
                asked = f'{path}: question "{number}"'
                if number in seen:
                    raise InvalidInput(f"{asked}: id: expected only one, found another in data[{i}].paragraphs[{k}]")
                seen.add(number)
                words = take(asked, question, "question", str)
                yield Question(asked, words, context, answer_of(asked, question, context))
    if not seen:
        raise InvalidInput(f"{path}: data: expected a question, found none")


def texts_of(questions: list[Question]) -> Iterator[str]:
    """Each question, and each context once."""
    yield from (question.question for question in questions)
    yield from dict.fromkeys(question.context for question in questions)


def features_of(tokenizer: Tokenizer, question: Question, sequence: int, stride: int) -> Iterator[Feature]:
    """The tokenizer must have [CLS] and [SEP]. Changes its truncation."""
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    # Checked here to name the question: the tokenizer would abort the process.
    tokenizer.no_truncation()
    asked = len(encode(tokenizer, question.question, special=False).ids)
    most = sequence - stride - MIN_ROOM + 1
    if asked > most:
        raise InvalidInput(
            f"{question.where}: question: expected at most {most} tokens, as a feature has {sequence} and overlaps "
            f"the next by {stride}, found {asked}"
        )
    tokenizer.enable_truncation(sequence, stride=stride, strategy="only_second")
    whole = encode(tokenizer, question.question, question.context)
    windows = [whole, *whole.overflowing]
    for place, window in enumerate(windows):
        context = asked + 2
        frame = [window.ids[0], window.ids[context - 1], window.ids[-1]]
        if frame != [cls, sep, sep] or window.type_ids != [0] * context + [1] * (len(window.ids) - context):
            raise InvalidInput(
                f"{question.where}: expected [CLS] question [SEP] context [SEP] with types 0 and 1, "
                f"found {window.tokens}"
            )
        # The tokenizer may drop characters at the context's ends, so no token covers them.
        first, last = place == 0, place == len(windows) - 1
        yield Feature(window.ids, context, *answer_in(window, context, question, first, last))


def answer_in(window: Any, context: int, question: Question, first: bool, last: bool) -> tuple[int, int]:
    """The first and the last token of the answer."""
    offsets = window.offsets[context:-1]
    if question.answer is None or not offsets:
        return 0, 0
    start, end = question.answer
    if (start < offsets[0][0] and not first) or (end > offsets[-1][1] and not last):
        return 0, 0
    within = [place for place, (begin, behind) in enumerate(offsets, context) if begin < end and behind > start]
    if not within:
        raise InvalidInput(f"{question.where}: answers[0]: text: expected at least one token, found none")
    return within[0], within[-1]
