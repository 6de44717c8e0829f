"""The standard pictures of a run, for slides; commands/pictures.py is the command."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformer.data.words import words_of
from transformer.inference.attention_maps import Attention, attention_of
from transformer.reports.attention_page import ABOUT, pictures
from transformer.reports.beam_figure import beam_figure
from transformer.reports.diagram import diagram
from transformer.reports.figures import (
    draw_attention,
    embeddings_figure,
    logit_lens_figure,
    positions_figure,
    schedule_figure,
)
from transformer.reports.model_summary import summary_of
from transformer.reports.pages import Picture
from transformer.reports.plots import learning_figure
from transformer.reports.translation_report import lengths_figure
from transformer.reports.translations import read
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.files import write_named
from transformer.tasks.pair_training import Texts

LENGTH = 32  # of the sentences whose FLOPs the diagram counts
FEW_WORDS = range(4, 13)  # of a sentence whose pictures are readable


@dataclasses.dataclass(frozen=True)
class Run:
    """What pictures are drawn of. source, target: a sentence for some; see `sentence`."""

    model: TrainedModel
    source: str | None = None
    target: str | None = None

    @functools.cached_property
    def texts(self) -> Texts:
        """The translations of the test split, or else of the validation split."""
        folder = self.model.workdir / "eval"
        splits = [x for x in ("test", "validation") if (folder / x / "hypotheses.txt").exists()]
        return read(self.model.workdir, splits[0] if splits else "test")

    @functools.cached_property
    def sentence(self) -> str:
        """The given source, or the first short one of the evaluated split."""
        if self.source is not None:
            return self.source
        try:
            sources = [source for source in self.texts.sources if source.strip()]
        except UserError as error:
            raise UserError(f"no sentence is given; add --source='...' ({error})") from error
        if not sources:
            raise UserError("no sentence is given; add --source='...'")
        return min(sources, key=lambda source: len(words_of(source)) not in FEW_WORDS)

    @functools.cached_property
    def attention(self) -> Attention:
        return attention_of(self.model, self.sentence, self.target)

    def of_page(self, name: str) -> Picture | None:
        """A picture of the page of attention."""
        draw = pictures(self.model, self.attention).get(name)
        return draw and draw()

    def by_length(self) -> Picture | None:
        data = self.model.config.data
        if not hasattr(data, "target_language"):
            return None
        return lengths_figure({"BLEU": (data, self.texts)})

    def curves(self) -> Picture:
        metrics = self.model.config.kind.metrics
        better = {name: metric.better for name, metric in metrics.items()}
        return learning_figure(self.model.workdir / "metrics.jsonl", better)


# By file name: the function that draws a picture, or returns None if the model has nothing to draw;
# and its text for those who cannot see it.
PICTURES: dict[str, tuple[Callable[[Run], Picture | None], str]] = {
    "architecture": (
        lambda run: diagram(summary_of(run.model.config, run.model.task.model, LENGTH)),
        "The modules of the model as boxes, from its inputs at the bottom to its output at the "
        "top, with the sizes of matrices and numbers of parameters.",
    ),
    "attention": (
        lambda run: draw_attention(run.attention, None, None, None, words=False),
        "The attention of the last layer, a panel for each head: each row is a token that looks, "
        "each column a token looked at; dark means much attention.",
    ),
    "steps": (lambda run: run.of_page("steps"), ABOUT["steps"]),
    "positions": (lambda run: positions_figure(run.model), ABOUT["positions"]),
    "masks": (lambda run: run.of_page("masks"), ABOUT["masks"]),
    "learning_rate": (lambda run: schedule_figure(run.model.config), ABOUT["learning_rate"]),
    "embeddings": (
        lambda run: embeddings_figure(run.model),
        "The words that the model's embedding holds as points of a plane; words with similar "
        "vectors are close to each other.",
    ),
    "layers": (
        lambda run: logit_lens_figure(run.model, run.sentence, run.target),
        "What each layer of the decoder would write at each position: a row for each layer, a "
        "column for each token; dark means probable.",
    ),
    "beam_tree": (
        lambda run: beam_figure(run.model, run.sentence),
        "The beam search as a tree that grows to the right: each column is a step, with the tokens "
        "that the beam weighed and their probabilities; the path of the output is highlighted.",
    ),
    "curves": (
        Run.curves,
        "Loss and scores while the model trained, against the number of updates.",
    ),
    "by_length": (
        Run.by_length,
        "BLEU of sentences in groups by the number of words of the source.",
    ),
}


def write_pictures(run: Run, folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Writes pictures as SVG and PNG, and alt.md with their texts. Yields a line about each."""
    entries = []
    for name in names:
        draw, alt = PICTURES[name]
        try:
            figure, why = draw(run), "the model has none"
        except UserError as error:
            figure, why = None, str(error)
        if figure is None:
            yield f"left out  {name}: {why}"
            continue
        figure.describe(f"{run.model.workdir.resolve().name}: {name.replace('_', ' ')}", alt)
        for ending in ("svg", "png"):
            figure.write(folder / f"{name}.{ending}", dpi=200)
        entries.append(f"![{alt}]({name}.png)\n")
        yield f"wrote     {folder / name}.svg and .png"
    write_named(folder / "alt.md", "\n".join(entries))
    yield f"wrote     {folder / 'alt.md'}, the texts for those who cannot see the pictures"
