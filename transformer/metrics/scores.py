"""Scores of translations: sacreBLEU metrics, and the kind of BLEU the paper reports.

There are two families. They are not comparable, so each score says what it is:

- `bleu`, `chrf`, `ter` see the text as people read it and carry sacreBLEU's signature. With
  tokenised data (`data.is_tokenized`) they see the tokens, and the signature says so.
- `bleu_tokenized_compound_split` is what "Attention Is All You Need" reports for
  English-German. Splitting compounds makes more n-grams match: on WMT14 the same
  translations read 0.6 to 1.5 points higher than with sacreBLEU.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from absl import logging
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.utils import SACREBLEU_DIR
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer.data.languages import has_spaces, look_without_spaces, written_as
from transformer.system import distributed
from transformer.system.errors import UserError

BY_CHARACTER = ("zh", "ja")  # for TER, which can split only these into characters
OWN_TOKENIZERS = ("zh", "ja", "ko")  # of sacreBLEU
SET_TOKENIZER = "set data.bleu_tokenizer (to evaluate, --bleu_tokenizer) to"

TOKENIZED_DEFINITION = (
    "{case} BLEU without smoothing (as multi-bleu.perl) over Moses tokens (sacremoses "
    "{version}) with compounds split at hyphens, as in Tensor2Tensor's get_ende_bleu.sh; "
    "not comparable with sacreBLEU: reads up to 1.5 points higher on WMT14 English-German"
)


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *more_references: Sequence[str],
    target_language: str,
    is_tokenized: bool = False,
    bleu_tokenizer: str | None = None,
) -> dict[str, dict]:
    """Scores a corpus of translations with every metric of this project.

    Both sides are raw, detokenised text, one sentence per item. No sentence is dropped: an
    empty hypothesis counts against the score. Each sentence may have more references: a match
    with one of them counts. Every score ignores a blank reference beside another one; if all are
    blank, the sentence has empty references. With `is_tokenized` both sides are tokens between
    spaces, which `bleu` then counts as they are, and the tokenised scores are left out.

    Returns `bleu`, `chrf` (chrF2) and `ter`, each `{"score", "signature"}` as sacreBLEU
    reports them, and `bleu_tokenized_compound_split` and
    `bleu_tokenized_compound_split_lowercase`, each `{"score", "definition"}`; these two
    only for languages whose words Moses can tell apart (not zh, ja, ko, th, ...), and `ter` for
    these and zh, ja and ko. All scores are on the scale of 0 to 100; TER is an error rate and may
    exceed it.

    `target_language` is a code such as `de` or `zh-CN`: see data/languages.py. It picks
    sacreBLEU's tokenizer for BLEU: `13a`, cased; `zh` for Chinese; `ja-mecab` and `ko-mecab` need
    packages that this project does not install. `bleu_tokenizer` names another.

    Raises ValueError when the sides differ in length (a defect of the caller) and
    UserError when there is nothing to score, and for what check_language refuses.
    """
    given = [_checked(hypotheses, side)[1] for side in (references, *more_references)]
    hypotheses, language = list(hypotheses), written_as(target_language)
    scores: dict[str, dict] = {}
    metrics = {"bleu": bleu_metric(target_language, is_tokenized, bleu_tokenizer), "chrf": CHRF()}
    if is_tokenized or has_spaces(target_language) or language in BY_CHARACTER:
        metrics["ter"] = _ter_metric(target_language, is_tokenized)
    for name, metric in metrics.items():
        score = metric.corpus_score(hypotheses, present(given)).score
        # The signature knows the number of references only after scoring.
        scores[name] = {"score": score, "signature": str(metric.get_signature())}
    has_words = has_spaces(target_language) and language not in OWN_TOKENIZERS
    if has_words and not is_tokenized:
        hypotheses = tokenize_and_split_compounds(hypotheses, language)
        given = [tokenize_and_split_compounds(side, language) for side in given]
        for name, case, lowercase in (
            ("bleu_tokenized_compound_split", "cased", False),
            ("bleu_tokenized_compound_split_lowercase", "lower-cased", True),
        ):
            # `force` silences sacreBLEU's warning about tokenised text: here it is meant.
            metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
            scores[name] = {
                "score": metric.corpus_score(hypotheses, present(given)).score,
                "definition": TOKENIZED_DEFINITION.format(case=case, version=version("sacremoses")),
            }
    return scores


def kind_of_text(data: Any) -> dict[str, Any]:
    """The settings of a data section that scores depend on."""
    return {
        "target_language": data.target_language,
        "is_tokenized": data.is_tokenized,
        "bleu_tokenizer": data.bleu_tokenizer,
    }


def check_language(
    references: Sequence[str] = (),
    *,
    target_language: str,
    is_tokenized: bool = False,
    bleu_tokenizer: str | None = None,
) -> None:
    """Raises UserError for a language whose words BLEU cannot count, at all or as installed.

    Warns of references without spaces between words that would be counted as if they had some.
    """
    metric = bleu_metric(target_language, is_tokenized, bleu_tokenizer)
    is_chosen = is_tokenized or bleu_tokenizer or written_as(target_language) in OWN_TOKENIZERS
    if distributed.is_first() and not is_chosen and look_without_spaces(references):
        logging.warning(
            "the references look like text without spaces between words, but the target language "
            "is %s, so BLEU (%s) and TER count what stands between spaces; set "
            "data.target_language (--languages without a run) to its code, such as zh or th, or %s "
            "char",
            *(target_language, metric.tokenizer_signature, SET_TOKENIZER),
        )


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    is_tokenized: bool = False,
    bleu_tokenizer: str | None = None,
) -> float:
    """Only the `bleu` score of `corpus_scores`, for validation during training."""
    hypotheses, references = _checked(hypotheses, references)
    metric = bleu_metric(target_language, is_tokenized, bleu_tokenizer)
    return metric.corpus_score(hypotheses, [references]).score


def tokenize_and_split_compounds(sentences: Sequence[str], language: str) -> list[str]:
    """Sentences as space-separated Moses tokens, compounds split at their hyphens.

    Normalises Unicode punctuation, tokenises without HTML escapes, then splits compounds.
    get_ende_bleu.sh does so with the hypotheses and reads references that were tokenised
    before; here both sides are raw text and go the same way. Agrees line for line with the
    Moses scripts of 2017. (Since November 2018 tokenizer.perl also splits a final dot from
    an abbreviation or a number: before, `Nummer 10.` was one token less.)
    """
    normalizer = MosesPunctNormalizer()
    tokenizer = MosesTokenizer(lang=language)
    return [
        split_compounds(
            tokenizer.tokenize(
                normalizer.replace_unicode_punct(sentence), return_str=True, escape=False
            )
        )
        for sentence in sentences
    ]


def split_compounds(tokens: str) -> str:
    """Replaces hyphens inside words: `Test-Satz` becomes `Test ##AT##-##AT## Satz`.

    The same result as `perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'`, whose matches do
    not overlap: the letter behind a hyphen is used up and cannot also stand before the
    next one, so `a-b-c` becomes `a ##AT##-##AT## b-c`, while in `ab-cd-ef` both are split.
    """
    # On bytes, as perl without -C reads them: the one-letter word `ö` has two, one for each
    # neighbour, so `ä-ö-ü` is split twice.
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()


def _checked(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[list[str], list[str]]:
    if len(hypotheses) != len(references):
        raise ValueError(
            f"every reference needs one hypothesis: got {len(hypotheses)} hypotheses "
            f"for {len(references)} references"
        )
    if not references:
        raise UserError("no sentences to score: check that the references are not empty")
    return list(hypotheses), list(references)


def present(sides: Sequence[list[str]]) -> list[list[str | None]]:
    """The references without the blank ones of sentences that have others."""
    sentences = [
        [one if one.strip() or not any(map(str.strip, ones)) else None for one in ones]
        for ones in zip(*sides, strict=True)
    ]
    return list(map(list, zip(*sentences, strict=True)))


def _ter_metric(target_language: str, is_tokenized: bool) -> TER:
    """TER of words; of characters for Chinese and Japanese, where a sentence has no spaces."""
    by_character = written_as(target_language) in BY_CHARACTER and not is_tokenized
    return TER(asian_support=by_character, normalized=by_character)


def bleu_metric(
    target_language: str, is_tokenized: bool = False, bleu_tokenizer: str | None = None
) -> BLEU:
    """sacreBLEU's metric behind `bleu`; raises UserError as check_language does."""
    if bleu_tokenizer not in (None, *BLEU.TOKENIZERS):
        raise UserError(
            f"data.bleu_tokenizer is {bleu_tokenizer!r}; it must be one of sacreBLEU's: "
            f"{', '.join(BLEU.TOKENIZERS)}"
        )
    language, tokenizer = written_as(target_language), bleu_tokenizer
    if tokenizer is None and is_tokenized:
        tokenizer = "none"
    elif tokenizer is None and not has_spaces(target_language) and language not in OWN_TOKENIZERS:
        raise UserError(
            f"text of the target language {target_language} has no spaces between words, and "
            f"sacreBLEU has no tokenizer of that language; {SET_TOKENIZER} char or flores200, or "
            "to 13a if your text does have these spaces"
        )
    try:
        if tokenizer is None:
            return BLEU(trg_lang=language)
        return BLEU(tokenize=tokenizer, force=tokenizer == "none")
    except (Exception, SystemExit) as error:  # no MeCab, no network, another dictionary
        name = tokenizer or f"{language}-mecab"
        language, is_mecab, _ = name.partition("-mecab")
        reason = f"({' '.join(str(error).split()) or type(error).__name__})"
        remedy = (
            f'needs packages: pip install "sacrebleu[{language}]"'
            if is_mecab
            else f"cannot be used {reason}; run this once on a machine with a network, and copy "
            f"{SACREBLEU_DIR} from there"
        )
        raise UserError(
            f"sacreBLEU's tokenizer {name} {remedy}; or {SET_TOKENIZER} another"
        ) from error
