"""The splits of a data section: the files that its fields name, or those of a TFDS data set."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from transformer.system.errors import UserError, check_range, place
from transformer.system.paths import local, named_files

SPLITS = ("train", "validation", "test")


class DataSection:
    """Base of the data sections. A field for a split begins with its name: data.train_text.

    what: a word for the files of a split, in messages.
    kinds: the ends of the names of its fields: alternatives, each of one field or of several that
      belong together.
    """

    what: ClassVar[str]
    kinds: ClassVar[tuple[tuple[str, ...], ...]]
    uses_files = True  # False if its data set is read instead

    def given(self, split: str) -> dict[str, str]:
        """The values of a split's fields by the ends of their names; {} if none are given."""
        for kinds in self.kinds:
            found = {kind: getattr(self, f"{split}_{kind}") for kind in kinds}
            if all(found.values()):
                return found
        return {}

    @property
    def languages(self) -> dict[str, str]:
        """The codes of its languages, by field; most sections have none."""
        return {}

    def needed(self, split: str, others: str = "") -> dict[str, str]:
        """`given`; raises UserError for an unknown split, and for one without files.

        others: what a user may give instead, for the message.
        """
        if split not in SPLITS:
            known = [name for name in SPLITS if self.given(name)] or SPLITS
            raise UserError(f"there is no split {split!r}; there are: {', '.join(known)}")
        if not (found := self.given(split)):
            raise UserError(
                f"no {self.what} for the {split} split; give {self.fields(split)}{others}"
            )
        return found

    def fields(self, split: str) -> str:
        """The fields of a split, for messages."""
        return ", or ".join(
            " and ".join(f"data.{split}_{x}" for x in kinds) for kinds in self.kinds
        )

    def check_together(self, *splits: str) -> None:
        """Raises UserError if one of two fields that belong together is given, or alternatives."""
        for split in splits:
            chosen = []
            for kinds in self.kinds:
                names = {f"data.{split}_{x}": getattr(self, f"{split}_{x}") for x in kinds}
                given = [name for name, value in names.items() if value]
                if missing := [name for name, value in names.items() if not value]:
                    if given:
                        raise UserError(
                            f"{given[0]} is given without {missing[0]}; give both or neither"
                        )
                else:
                    chosen.append(given[0])
            if len(chosen) > 1:
                raise UserError(f"{' and '.join(chosen)} are both given; leave one out")


@dataclasses.dataclass(frozen=True)
class DatasetSection(DataSection):
    """Base of those that may name a data set of TFDS; files win over it."""

    dataset: str | None
    data_dir: str = place()
    train_split: str
    validation_split: str
    test_split: str

    @property
    def uses_files(self) -> bool:
        return not self.dataset or any(map(self.given, SPLITS))


@dataclasses.dataclass(frozen=True)
class PairSection(DatasetSection):
    """Base of those whose examples are pairs of texts."""

    raw_dir: str | None = place()
    train_source: str | None = place()
    train_target: str | None = place()
    validation_source: str | None = place()
    validation_target: str | None = place()
    test_source: str | None = place()
    test_target: str | None = place()
    max_source_length: int
    max_target_length: int
    packing: bool

    def __post_init__(self):
        self.check_together(*SPLITS)
        if not self.dataset and not any(map(self.given, SPLITS)):
            raise UserError(f"no training data; give data.dataset, or {self.fields('train')}")
        check_range(self, "data", "max_source_length max_target_length", 2)  # a word and EOS


@dataclasses.dataclass(frozen=True)
class TextSection(DataSection):
    """The fields of plain text."""

    train_text: str | None = place()
    validation_text: str | None = place()
    test_text: str | None = place()

    what = "text"
    kinds = (("text",),)

    def files(self, split: str) -> list[str]:
        """The text files of a split; raises UserError if there are none."""
        return named_files(self.needed(split)["text"], f"data.{split}_text")


class DatasetSplit(NamedTuple):
    """A split of a data set of TFDS. name: TFDS's, perhaps a slice; field: for messages."""

    builder: Any
    name: str
    field: str

    def records(self) -> Any:
        return self.builder.as_data_source(self.name)


def open_dataset(
    config: Any,
    split: str,
    columns: Mapping[str, str],
    *,
    texts: bool = False,
    raw_dir: str | None = None,
) -> DatasetSplit:
    """A split of the data set that a data section names; it is prepared first if it is new.

    columns: the features that it must have, by the fields of the section that name them.
    texts: whether these have to be texts.
    """
    import tensorflow_datasets as tfds

    from transformer.data import datasets

    field, name = "the split", split
    if split in SPLITS:
        field, name = f"data.{split}_split", getattr(config, f"{split}_split")
    # The folder of this data set; in a bucket there may be many.
    own = f"{config.data_dir.rstrip('/')}/{config.dataset.partition('/')[0]}"
    data_dir = os.path.dirname(local(own, "data.data_dir"))
    builder = datasets.get_builder(config.dataset, data_dir=data_dir, raw_dir=raw_dir)
    features = builder.info.features
    known = sorted(x for x in features if not texts or isinstance(features[x], tfds.features.Text))
    for named_by, column in columns.items():
        if column not in known:
            raise UserError(
                f"{config.dataset} has no {column!r} (data.{named_by}); it has: {', '.join(known)}"
            )
    datasets.prepare(builder, raw_dir)
    splits = builder.info.splits
    try:
        _ = splits[name]
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{field} is {name!r}, which {config.dataset} does not have; it has: "
            f"{', '.join(sorted(splits))}, and slices such as 'train[:10%]'"
        ) from error
    return DatasetSplit(builder, name, field)
