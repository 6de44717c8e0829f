"""What the words of a text alone say of its class: a baseline for fine-tuned models.

    pip install -c constraints.txt -e ".[bert]"
    python benchmarks/bag_of_words.py
    python benchmarks/bag_of_words.py --config=configs/sweeps/glue.py --format=md

A logistic regression over the words of a text and their pairs (n-grams of one and two), weighted by
tf-idf; of pairs of texts over those of each text. The strength of its regularisation is chosen by
cross-validation on the training data. Scores are of the validation split.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import scipy.sparse
from absl import flags
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from transformer.data.labelled_text import Example, LabelledData, read_examples
from transformer.metrics.labels import class_scores
from transformer.reports.tables import FORMATS, formatted
from transformer.runs import cli, sweep
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

CONFIG = DEFINE_path("config", "configs/sweeps/glue.py", "A sweep of classifications.")
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the table.")


def main() -> None:
    file, rows, seen = CONFIG.value, [], []
    for run in sweep.runs_of(sweep.read_plan(file), file):
        if isinstance(run.config, UserError):
            raise run.config
        data = run.config.data
        if not isinstance(data, LabelledData) or data.regression:
            raise UserError(f"{file}: {run.name} has no classes; give a sweep of classifications")
        if data not in seen:
            seen.append(data)
            training, validation = (read_examples(data, split) for split in ("train", "validation"))
            scores = baseline(training, validation)
            numbers = [f"{entry['score']:.1f}" for entry in scores.values()]
            rows.append([data.train_file or data.dataset, *numbers])
    print(formatted(["data", "accuracy", "f1", "matthews"], rows, FORMAT.value), end="")


def baseline(training: list[Example], validation: list[Example]) -> dict[str, dict]:
    """The scores of labels that a logistic regression gives the validation examples."""
    known, new = [], []
    for column in ("text", "second") if training[0].second is not None else ("text",):
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        known.append(words.fit_transform(getattr(x, column) for x in training))
        new.append(words.transform(getattr(x, column) for x in validation))
    strengths = {"C": np.logspace(-2, 3, 6)}
    model = GridSearchCV(LogisticRegression(max_iter=1000), strengths, cv=5)
    model.fit(scipy.sparse.hstack(known).tocsr(), [x.label for x in training])
    found = model.predict(scipy.sparse.hstack(new).tocsr())
    return class_scores(list(map(str, found)), [x.label for x in validation])


if __name__ == "__main__":
    cli.run(main)
