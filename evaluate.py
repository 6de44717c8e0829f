"""Scores a trained model: restore -> translate a split -> scores.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5

Writes WORKDIR/eval/<split>/: sources.txt, references.txt, hypotheses.txt, scores.json.
"""

if __name__ == "__main__":
    from transformer.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import time
from pathlib import Path

from absl import flags

from transformer import cli
from transformer.errors import UserError
from transformer.evaluation import translate_source, write_evaluation
from transformer.logs import Progress
from transformer.scores import corpus_scores
from transformer.sources import open_source
from transformer.trained import CHECKPOINTS, restore

WORKDIR = flags.DEFINE_string("workdir", None, "The work directory of a training run.")
SPLIT = flags.DEFINE_string(
    "split", "test", "train, validation, test, or another split of the run's data set."
)
CHECKPOINT = flags.DEFINE_enum("checkpoint", "best", CHECKPOINTS, "Which parameters to use.")
AVERAGE_LAST = flags.DEFINE_integer(
    "average_last", 5, "How many checkpoints --checkpoint=average averages.", lower_bound=1
)
BEAM_SIZE = flags.DEFINE_integer("beam_size", None, "Instead of the config's.")
LENGTH_PENALTY = flags.DEFINE_float("length_penalty", None, "Its alpha, instead of the config's.")


def main() -> None:
    if WORKDIR.value is None:
        raise UserError("--workdir is missing; give the work directory of a training run")
    workdir = Path(WORKDIR.value)

    # 1. The model and the split.
    model = restore(
        workdir,
        CHECKPOINT.value,
        AVERAGE_LAST.value,
        beam_size=BEAM_SIZE.value,
        length_penalty=LENGTH_PENALTY.value,
    )
    source = open_source(model.config.data, SPLIT.value)
    print(f"{workdir} at step {', '.join(map(str, model.steps))}; {source.describe()}", flush=True)

    # 2. Its translations.
    start = time.monotonic()
    with Progress(len(source), initial=0) as progress:
        translations = translate_source(model.translator, model.params, source, progress.update)
    seconds = time.monotonic() - start

    # 3. Their scores.
    language = model.config.data.target_language
    scores = corpus_scores(
        translations.hypotheses, translations.references, target_language=language
    )
    directory = write_evaluation(
        workdir,
        SPLIT.value,
        translations,
        {
            **scores,
            "split": SPLIT.value,
            "sentences": len(source),
            "seconds": round(seconds, 1),
            **model.provenance(),
        },
    )
    print(translations.examples(3))
    for name, score in scores.items():
        print(f"{name:40} {score['score']:6.2f}  {score.get('signature') or score['definition']}")
    print(f"{len(source)} sentences in {seconds:.1f} s; texts and scores in {directory}")


if __name__ == "__main__":
    cli.run(main)
