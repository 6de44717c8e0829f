"""Is a difference between scores chance? Paired bootstrap resampling (Koehn 2004), by sacreBLEU."""

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest, Result

from transformer.metrics.scores import bleu_metric, present

RESAMPLES = 1000


def paired_bootstrap(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    kind: Mapping[str, Any],
    names: Sequence[str] = ("bleu", "chrf"),
) -> dict[str, list[Result]]:
    """For each metric: score, mean and 95 % interval of each system; p of all but the first.

    p is the probability of a difference from the first as large as this if there were none.
    references: as many for each sentence as there are. kind: as for `scores.bleu_metric`.
    """
    metrics = {"bleu": bleu_metric(**kind), "chrf": CHRF()}
    metrics = {name: metrics[name] for name in names}
    named = [(str(number), list(lines)) for number, lines in enumerate(systems)]
    test = PairedTest(named, metrics, present(references), test_type="bs", n_samples=RESAMPLES)
    _, found = test()
    results = dict(zip(metrics, list(found.values())[1:], strict=True))
    for first, *others in results.values():
        for other in others:
            if other.score == first.score:  # sacreBLEU's formula gives the smallest p
                other.p_value = 1.0
    return results


def against(
    other: str,
    others: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    kind: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """The entry for scores.json of each metric: the difference from other translations, and its p.

    other: names them.
    """
    return {
        name: {
            "other": other,
            "score": first.score,
            "difference": own.score - first.score,
            "p_value": own.p_value,
            "test": f"paired bootstrap, {RESAMPLES:,} samples",
        }
        for name, (first, own) in paired_bootstrap([others, hypotheses], references, kind).items()
    }
