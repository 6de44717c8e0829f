"""Is a difference between scores chance? Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from transformer.metrics.scores import bleu_metric, present

RESAMPLES = 1000


def against(
    other: str,
    others: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    kind: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """The entry for scores.json of each metric: the difference from other translations, and its p.

    p is the probability of a difference as large as this if there were none.
    other: names them. references: as many for each sentence as there are.
    kind: as for `scores.bleu_metric`.
    """
    metrics = {"bleu": bleu_metric(**kind), "chrf": CHRF()}
    named = [("other", list(others)), ("own", list(hypotheses))]
    test = PairedTest(named, metrics, present(references), test_type="bs", n_samples=RESAMPLES)
    results = list(test()[1].values())[1:]
    return {
        name: {
            "other": other,
            "score": first.score,
            "difference": own.score - first.score,
            # Of equal scores, sacreBLEU's formula gives the smallest p.
            "p_value": own.p_value if own.score != first.score else 1.0,
            "test": f"paired bootstrap, {RESAMPLES:,} samples",
        }
        for name, (first, own) in zip(metrics, results, strict=True)
    }
