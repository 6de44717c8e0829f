"""Scores a trained model: restore -> translate a split -> scores.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5

Writes WORKDIR/eval/<split>/: sources.txt, references.txt, hypotheses.txt, scores.json. In
several processes (docs/running.md) the devices of all share the sentences.
"""

if __name__ == "__main__":
    from transformer.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import time

from absl import flags

from transformer import cli, distributed
from transformer.evaluation import translate_source, write_evaluation
from transformer.logs import Progress
from transformer.sources import open_source
from transformer.trained import define_flags

restore_model = define_flags()
SPLIT = flags.DEFINE_string(
    "split", "test", "train, validation, test, or another split of the run's data set."
)


def main() -> None:
    distributed.initialize()

    # 1. The model and the split.
    model = restore_model()
    with distributed.first_alone():
        source = open_source(model.config.data, SPLIT.value)
    steps = ", ".join(map(str, model.steps))
    print(f"{model.workdir} at step {steps}; {source.describe()}", flush=True)

    # 2. Its translations, by the devices of all processes.
    start = time.monotonic()
    is_first = distributed.is_first()
    with Progress(len(source), initial=0) if is_first else distributed.Quiet() as progress:
        translations = translate_source(model.translator, model.params, source, progress.update)
    seconds = time.monotonic() - start
    if not is_first:
        return

    # 3. Their scores.
    scores = translations.scores(model.config.data)
    directory = write_evaluation(
        model.workdir,
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
