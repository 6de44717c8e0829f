"""Output formats: text, tab-separated columns, or JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer.decoding.translation import Translation

FORMATS = ("text", "json", "tsv")


def translation_lines(
    form: str,
    number: int,
    source: str,
    translations: "Sequence[Translation]",
    *,
    nbest: int,
    alignments: bool,
    error: str = "",
) -> str:
    """All output for a line of the input, best translation first.

    text: always `nbest` lines, the last ones empty if there are fewer translations.
    tsv: line number, rank, score, log-probability, text and, if requested, alignment.
    json: one object. error: why the line was passed over.
    """
    if form == "json":
        found = [_described(x, alignments) for x in translations]
        return _json({"line": number, "source": source, "translations": found}, error)
    rows = []
    for rank, x in enumerate(translations, 1):
        row = [str(number), str(rank), _number(x.score), _number(x.log_prob), _cell(x.text)]
        pairs = pharaoh(x.alignment) if alignments else ""
        text = f"{x.text} ||| {pairs}" if alignments else x.text
        rows.append("\t".join([*row, pairs] if alignments else row) if form == "tsv" else text)
    empty = "" if form == "text" else "\t".join([str(number), "1", *[""] * (3 + alignments)])
    rows += [empty] * ((nbest if form == "text" else 1) - len(rows))
    return "".join(f"{row}\n" for row in rows)


def score_line(
    form: str,
    number: int,
    source: str,
    scored: "Translation | None",
    *,
    alignments: bool,
    error: str = "",
) -> str:
    """All output for a pair; `scored` is None for one without a target, or one passed over.

    text: the log-probability of the target. tsv: line number, log-probability, number of tokens,
    perplexity and, if requested, alignment. json: one object.
    """
    if form == "json":
        found = {} if scored is None else _described(scored, alignments)
        if scored is not None:
            found["perplexity"] = _finite(perplexity(scored.log_prob, len(scored.token_log_probs)))
        return _json({"line": number, "source": source, **found}, error)
    if scored is None:
        row = ["", "", "", *[""] * alignments]
    else:
        tokens = len(scored.token_log_probs)
        row = [_number(scored.log_prob), str(tokens), _number(perplexity(scored.log_prob, tokens))]
        row += [pharaoh(scored.alignment)] * alignments
    if form == "tsv":
        return "\t".join([str(number), *row]) + "\n"
    return (f"{row[0]} ||| {row[-1]}" if alignments and scored else row[0]) + "\n"


def perplexity(log_prob: float, tokens: int) -> float:
    """exp of the mean negative log-probability, in nats; infinity where that is too large."""
    try:
        return math.exp(-log_prob / tokens) if tokens else math.nan
    except OverflowError:
        return math.inf


def pharaoh(alignment: Sequence[tuple[int, int]] | None) -> str:
    """Pairs of source word and target word, counted from 0, as `0-0 1-2`."""
    return " ".join(f"{i}-{j}" for i, j in alignment or ())


def _described(translation: "Translation", alignments: bool) -> dict[str, Any]:
    described = {
        "text": translation.text,
        "score": _finite(translation.score),
        "log_prob": _finite(translation.log_prob),
        "tokens": list(translation.tokens),
        "token_log_probs": [_finite(value) for value in translation.token_log_probs],
    }
    return described | ({"alignment": pharaoh(translation.alignment)} if alignments else {})


def _json(value: Mapping[str, Any], error: str) -> str:
    value = {**value, **({"error": error} if error else {})}
    return json.dumps(value, ensure_ascii=False) + "\n"


def _cell(text: str) -> str:
    return text.replace("\t", " ")


def _number(value: float) -> str:
    return f"{value + 0.0:.6g}"  # no -0


def _finite(value: float) -> float | None:
    """Rounded; None for a value that JSON cannot hold."""
    return round(float(value), 6) + 0.0 if math.isfinite(value) else None
