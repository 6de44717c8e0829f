"""Scores of translations: sacreBLEU metrics, and the kind of BLEU the paper reports.

Two families that are not comparable, so each score says what it is:

- `bleu`, `chrf`, `ter` see the text as people read it and carry sacreBLEU's signature. Of data
  that are tokenised (`data.is_tokenized`) they see the tokens, and the signature says so.
- `bleu_tokenized_compound_split` is what "Attention Is All You Need" reports for
  English-German. Splitting compounds makes more n-grams match: on WMT14 the same
  translations read 0.6 to 1.5 points higher than with sacreBLEU.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version

from sacrebleu.metrics import BLEU, CHRF, TER
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from transformer.system.errors import UserError

# Not split into words at spaces, which is where Moses looks for tokens first.
NO_SPACES = frozenset({"zh", "ja", "ko"})

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
) -> dict[str, dict]:
    """Scores a corpus of translations with every metric of this project.

    Both sides are raw, detokenised text, one sentence an item. No sentence is dropped: an
    empty hypothesis counts against the score. More references of each sentence can be given:
    what is in one of them counts. With `is_tokenized` both are tokens between
    spaces, which `bleu` then counts as they are, and the tokenised scores are left out.

    Returns `bleu`, `chrf` (chrF2) and `ter`, each `{"score", "signature"}` as sacreBLEU
    reports them, and `bleu_tokenized_compound_split` and
    `bleu_tokenized_compound_split_lowercase`, each `{"score", "definition"}`; these two
    only for languages whose words Moses can tell apart (not zh, ja, ko). All scores are
    on the scale of 0 to 100; TER is an error rate and may exceed it.

    `target_language` is a code such as `de` or `zh-CN`. It picks sacreBLEU's tokenizer for
    BLEU: `13a`, cased; `zh` for Chinese; `ja-mecab` and `ko-mecab` need packages that this
    project does not install.

    Raises ValueError when the sides differ in length (a defect of the caller) and
    UserError when there is nothing to score.
    """
    given = [_checked(hypotheses, side)[1] for side in (references, *more_references)]
    hypotheses, language = list(hypotheses), _primary_subtag(target_language)
    scores: dict[str, dict] = {}
    for name, metric in (
        ("bleu", bleu_metric(language, is_tokenized)),
        ("chrf", CHRF()),
        ("ter", _ter_metric(language, is_tokenized)),
    ):
        score = metric.corpus_score(hypotheses, given).score
        # The signature knows the number of references only after scoring.
        scores[name] = {"score": score, "signature": str(metric.get_signature())}
    if language not in NO_SPACES and not is_tokenized:
        hypotheses = tokenize_and_split_compounds(hypotheses, language)
        given = [tokenize_and_split_compounds(side, language) for side in given]
        for name, case, lowercase in (
            ("bleu_tokenized_compound_split", "cased", False),
            ("bleu_tokenized_compound_split_lowercase", "lower-cased", True),
        ):
            # `force` silences sacreBLEU's warning about tokenised text: here it is meant.
            metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
            scores[name] = {
                "score": metric.corpus_score(hypotheses, given).score,
                "definition": TOKENIZED_DEFINITION.format(case=case, version=version("sacremoses")),
            }
    return scores


def check_language(*, target_language: str, is_tokenized: bool) -> None:
    """Raises UserError for a language whose tokenizer is not installed."""
    bleu_metric(target_language, is_tokenized)


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    is_tokenized: bool = False,
) -> float:
    """The `bleu` score of `corpus_scores` alone, for validation during training."""
    hypotheses, references = _checked(hypotheses, references)
    metric = bleu_metric(target_language, is_tokenized)
    return metric.corpus_score(hypotheses, [references]).score


def tokenize_and_split_compounds(sentences: Sequence[str], language: str) -> list[str]:
    """Sentences as space-separated Moses tokens, compounds split at their hyphens.

    Normalises Unicode punctuation, tokenises without HTML escapes, then splits compounds.
    get_ende_bleu.sh does so to the hypotheses and reads references that were tokenised
    before; here both sides are raw text and go the same way. Agrees line for line with the
    Moses scripts of 2017. (Since November 2018 tokenizer.perl also splits a final dot from
    an abbreviation or a number: `Nummer 10.` was one token less then.)
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


def _primary_subtag(language: str) -> str:
    return re.split("[-_]", language.lower())[0]


def _ter_metric(language: str, is_tokenized: bool) -> TER:
    """TER of words; of characters for Chinese and Japanese, where a sentence has no spaces."""
    by_character = language in ("zh", "ja") and not is_tokenized
    return TER(asian_support=by_character, normalized=by_character)


def bleu_metric(target_language: str, is_tokenized: bool) -> BLEU:
    """sacreBLEU's metric behind `bleu`; UserError if it needs what is not installed."""
    language = _primary_subtag(target_language)
    if is_tokenized:
        return BLEU(tokenize="none", force=True)
    try:
        return BLEU(trg_lang=language)
    except RuntimeError as error:  # MeCab is not installed
        raise UserError(
            f"BLEU of {language} needs sacreBLEU's MeCab tokenizer: "
            f'pip install "sacrebleu[{language}]"'
        ) from error
