"""Output formats: text, tab-separated columns, or JSON."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformer.decoding.translation import Translation

FORMATS = ("text", "json", "tsv")


class Answer(NamedTuple):
    """A line of the input with its translations, best first; or with the score of its target."""

    number: int
    source: str
    found: "Sequence[Translation]"  # none for a blank line, and for one that was passed over
    error: str = ""  # why it was passed over


def translation_lines(answer: Answer, form: str, nbest: int, alignments: bool) -> str:
    """All output for a line of the input.

    text: always `nbest` lines, the last ones empty if there are fewer translations.
    tsv: line number, rank, score, log-probability, text and, if requested, alignment.
    json: one object.
    """
    if form == "json":
        return _json(answer, {"translations": [_described(x, alignments) for x in answer.found]})
    rows = []
    for rank, x in enumerate(answer.found, 1):
        if form == "tsv":
            row = [str(rank), _number(x.score), _number(x.log_prob), x.text.replace("\t", " ")]
            rows.append("\t".join([str(answer.number), *row, *_aligned(x, alignments)]))
        else:
            rows.append(" ||| ".join([x.text, *_aligned(x, alignments)]))
    empty = "" if form == "text" else "\t".join([str(answer.number), "1", *[""] * (3 + alignments)])
    rows += [empty] * ((nbest if form == "text" else 1) - len(rows))
    return "".join(f"{row}\n" for row in rows)


def score_line(answer: Answer, form: str, alignments: bool) -> str:
    """All output for a pair.

    text: the log-probability of the target. tsv: line number, log-probability, number of tokens,
    perplexity and, if requested, alignment. json: one object.
    """
    described, row = {}, ["", "", "", *[""] * alignments]
    for x in answer.found:
        tokens = len(x.token_log_probs)
        of_token = perplexity(x.log_prob, tokens)
        described = _described(x, alignments) | {"perplexity": _finite(of_token)}
        row = [_number(x.log_prob), str(tokens), _number(of_token), *_aligned(x, alignments)]
    if form == "json":
        return _json(answer, described)
    if form == "tsv":
        return "\t".join([str(answer.number), *row]) + "\n"
    return " ||| ".join([row[0], *row[3:]] if answer.found else [""]) + "\n"


def perplexity(log_prob: float, tokens: int) -> float:
    """exp of the mean negative log-probability, in nats; infinity where that is too large."""
    try:
        return math.exp(-log_prob / tokens) if tokens else math.nan
    except OverflowError:
        return math.inf


def _aligned(translation: "Translation", alignments: bool) -> list[str]:
    """Pairs of source word and target word, counted from 0, as `0-0 1-2`; if requested."""
    pairs = translation.alignment or ()
    return [" ".join(f"{i}-{j}" for i, j in pairs)] if alignments else []


def _described(translation: "Translation", alignments: bool) -> dict[str, Any]:
    return {
        "text": translation.text,
        "score": _finite(translation.score),
        "log_prob": _finite(translation.log_prob),
        "tokens": list(translation.tokens),
        "token_log_probs": [_finite(value) for value in translation.token_log_probs],
        **dict(zip(["alignment"], _aligned(translation, alignments))),
    }


def _json(answer: Answer, described: dict[str, Any]) -> str:
    value = {"line": answer.number, "source": answer.source, **described}
    value |= {"error": answer.error} if answer.error else {}
    return json.dumps(value, ensure_ascii=False) + "\n"


def _number(value: float) -> str:
    return f"{value + 0.0:.6g}"  # no -0


def _finite(value: float) -> float | None:
    """Rounded; None for a value that JSON cannot hold."""
    return round(float(value), 6) + 0.0 if math.isfinite(value) else None
