"""Shared by the encoder-only tasks: vocabulary and rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from transformer.data.wordpiece import WordPiece, train_wordpiece
from transformer.models.functional import FunctionalModel
from transformer.system.errors import UserError
from transformer.system.paths import local
from transformer.tasks.supervised import Supervised
from transformer.tasks.task import check_family


class EncoderTask(Supervised):
    """A model with its vocabulary and, for some tasks, classes."""

    def __init__(
        self,
        config: Any,  # a Config
        tokenizer: WordPiece,
        model: FunctionalModel,
        mesh: jax.sharding.Mesh,
        classes: list[str] | None = None,
    ):
        super().__init__(config.data, model, mesh)
        self.has_pairs = config.model.head == "pre_training"
        self.tokenizer = tokenizer
        self.classes = classes

    def save(self, workdir: Path) -> None:
        self.tokenizer.save(workdir)

    def provenance(self) -> dict[str, Any]:
        return {"tokenizer_sha256": [self.tokenizer.sha256]}


def check_model(config: Any, heads: tuple[str, ...]) -> None:
    """Raises UserError unless a BERT task can train the model."""
    check_family(config, "bert")
    if config.model.head not in heads:
        raise UserError(
            f"model.head is {config.model.head!r}, and task.name is {config.task.name!r}; set "
            f"model.head to {' or '.join(map(repr, heads))}"
        )


def get_tokenizer(config: Any, workdir: Path, begun_with: Any, lines: Callable) -> WordPiece:
    """A run's vocabulary: from the work directory, from init_from, as given, or new."""
    if (workdir / "vocab.txt").exists():
        return WordPiece.load(workdir, workdir)
    if begun_with is not None:
        return begun_with.tokenizer
    if config.tokenizer.source_model:
        return WordPiece.read(Path(local(config.tokenizer.source_model, "tokenizer.source_model")))
    return train_wordpiece(lines, config.tokenizer)


def no_ensemble(members: Sequence[Any]) -> Any:
    """See Task."""
    raise UserError("--ensemble is for translation; leave it out")
