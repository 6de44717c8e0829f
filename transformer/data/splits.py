"""The splits of a data section: the files that its fields name, or those of a data set."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from transformer.data.hub import PREFIX, open_hub
from transformer.data.records import Records, Row
from transformer.system.errors import UserError, check_range, place, setting
from transformer.system.paths import local, named_files

SPLITS = ("train", "validation", "test")
_READ = 1000  # examples of TFDS that are read at once


class DataSection:
    """Base of the data sections. A field for a split begins with its name: data.train_file.

    what: a word for the files of a split, in messages.
    kinds: the ends of the names of its fields: alternatives, each of one field or of several that
      belong together.
    """

    what: ClassVar[str]
    kinds: ClassVar[tuple[tuple[str, ...], ...]]
    uses_files = True  # False if its data set is read instead
    uses_tfds = False  # True if that is one of TFDS

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

    def files(self, split: str, kind: str) -> list[str]:
        """The files that a field of a split names, in order; raises UserError if one is missing."""
        return named_files(getattr(self, f"{split}_{kind}"), f"data.{split}_{kind}")

    def fields(self, split: str) -> str:
        """The fields of a split, for messages."""
        return ", or ".join(
            " and ".join(f"data.{split}_{x}" for x in kinds) for kinds in self.kinds
        )

    def check_together(self) -> None:
        """Raises UserError if one of two fields that belong together is given, or alternatives."""
        for split in SPLITS:
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
    """Base of those that may name a data set, of TFDS or of the hub; files win over it."""

    dataset: str | None = setting(default=None)
    raw_dir: str | None = place(default=None)
    train_split: str = setting(default="train")
    validation_split: str = setting(default="validation")
    test_split: str = setting(default="test")

    @property
    def uses_files(self) -> bool:
        return not self.dataset or any(map(self.given, SPLITS))

    @property
    def uses_tfds(self) -> bool:
        return not self.uses_files and not self.dataset.startswith(PREFIX)

    def fields(self, split: str) -> str:
        return super().fields(split) + ("" if self.dataset else ", or data.dataset")

    def split_of(self, split: str) -> tuple[str, str]:
        """The data set's name for a split, and the field that gives it, for messages."""
        if split in SPLITS:
            return getattr(self, f"{split}_split"), f"data.{split}_split"
        return split, "the split"


@dataclasses.dataclass(frozen=True)
class RecordSection(DatasetSection):
    """Base of those whose examples are records of files or of the hub: data/records.py."""

    train_file: str | None = place(default=None)
    validation_file: str | None = place(default=None)
    test_file: str | None = place(default=None)
    has_header: bool = setting(default=False)

    what = "files"
    kinds = (("file",),)

    def records(self, split: str, columns: Mapping[str, str]) -> Records:
        """The records of a split. columns: the names of the fields, by the section's fields."""
        if not self.uses_files:
            found = open_hub(self.dataset, self.raw_dir)
            name, field = self.split_of(split)
            return Records(found.files(name, field), columns, name=f"{self.dataset} {name}")
        self.needed(split)
        return Records(self.files(split, "file"), columns, self.has_header)


@dataclasses.dataclass(frozen=True)
class PairSection(RecordSection):
    """Base of those whose examples are pairs of texts."""

    data_dir: str = place()
    train_source: str | None = place()
    train_target: str | None = place()
    validation_source: str | None = place()
    validation_target: str | None = place()
    test_source: str | None = place()
    test_target: str | None = place()
    max_source_length: int
    max_target_length: int
    packing: bool

    kinds = (("file",), ("source", "target"))

    def __post_init__(self):
        self.check_together()
        if not self.dataset and not any(map(self.given, SPLITS)):
            raise UserError(f"no training data; give {self.fields('train')}")
        check_range(self, "data", "max_source_length max_target_length", 2)  # a word and EOS


@dataclasses.dataclass(frozen=True)
class TextSection(RecordSection):
    """The fields of plain text."""

    text_field: str = setting(default="text")

    def __post_init__(self):
        if self.uses_tfds:
            raise UserError(
                f"data.dataset is {self.dataset!r}; plain text is read from files, or from "
                "the hub: give hf:REPOSITORY:CONFIG"
            )

    def texts(self, split: str) -> Records:
        """The text files of a split; raises UserError if there are none."""
        return self.records(split, {"text_field": self.text_field})


class DatasetSplit(NamedTuple):
    """A split of a data set of TFDS. name: TFDS's, perhaps a slice; field: for messages."""

    builder: Any
    name: str
    field: str

    def records(self) -> Any:
        return self.builder.as_data_source(self.name)

    def rows(
        self, columns: Mapping[str, str], wanted: Sequence[int] | None = None
    ) -> Iterator[Row]:
        """The values of some features of each example; a class has its name.

        wanted: the numbers of the examples, from 0; all by default.
        """
        import tensorflow_datasets as tfds

        features, records = self.builder.info.features, self.records()

        def value(name: str, found: Any) -> Any:
            if isinstance(feature := features[name], tfds.features.ClassLabel):
                # GLUE's test splits have -1 for labels that are not public.
                return feature.int2str(int(found)) if found >= 0 else None
            return found.decode(errors="replace") if isinstance(found, bytes) else found

        where = f"{self.builder.info.full_name} {self.name}"
        wanted = range(len(records)) if wanted is None else wanted
        for start in range(0, len(wanted), _READ):
            numbers = wanted[start : start + _READ]
            # One call for many is three times faster than one call for each.
            for number, record in zip(numbers, records.__getitems__(numbers), strict=True):
                values = tuple(value(name, record[name]) for name in columns.values())
                yield f"{where}, example {number + 1}", values


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

    name, field = config.split_of(split)
    # The folder of this data set; in a bucket there may be many.
    own = f"{config.data_dir.rstrip('/')}/{re.split('[/:]', config.dataset)[0]}"
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
