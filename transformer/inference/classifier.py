"""Classification line by line: a label and probabilities for each text or pair."""

import json
from typing import Any

from transformer.inference.engine import Engine, Item, Options
from transformer.inference.output import Output
from transformer.runs.integrity import digest
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.tasks.classification import Classification


class Classifier(Engine):
    """Runs lines through a classifier as Engine translates them; each gives a JSON object."""

    def __init__(self, model: TrainedModel, output: Output, name: str):
        if not isinstance(model.task, Classification):
            raise UserError(
                f"{model.workdir} is a run of the task {model.config.task.name}; give the "
                "--workdir of one of classification"
            )
        super().__init__(model, Options(format="json"), output, name)
        self._columns = 1 + (model.task.data.second_field is not None)

    def identity(self) -> dict[str, Any]:
        """The settings that the output depends on, besides its input."""
        return {
            "parameters": digest((self.model.params, self.model.extra))[:16],
            "tokenizer": self.model.task.tokenizer.sha256[:16],
        }

    def _check_options(self) -> None:
        """Does nothing: there are no options."""

    def _item(self, number: int, line: str | UserError) -> Item | UserError:
        if isinstance(line, UserError):
            return line
        columns = line.split("\t")
        if len(columns) != self._columns:
            return UserError(
                f"{self.name}, line {number} has {len(columns)} columns; expected "
                f"{self._columns}, with a tab between columns"
            )
        return Item(number, *columns)

    def _of_model(self, items: list[Item]) -> list[dict[str, Any]]:
        texts = [(item.source, item.target) for item in items]
        return self.model.task.classify(self.model.params, self.model.extra, texts)

    def _formatted(self, number: int, item: Item, answer: dict[str, Any]) -> str:
        return json.dumps(answer, ensure_ascii=False) + "\n"
