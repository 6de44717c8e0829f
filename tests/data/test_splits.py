"""What every data section says of its splits."""

import dataclasses

import pytest

from transformer.data.splits import DataSection
from transformer.system.errors import UserError


@dataclasses.dataclass(frozen=True)
class Section(DataSection):
    train_file: str | None = None
    train_source: str | None = None
    train_target: str | None = None
    validation_file: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_file: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    what = "files"
    kinds = (("file",), ("source", "target"))


def test_the_fields_of_a_split():
    section = Section(train_file="a", test_source="b", test_target="c", validation_source="d")
    assert section.needed("train") == {"file": "a"}
    assert section.needed("test") == {"source": "b", "target": "c"}
    assert section.given("validation") == {}
    with pytest.raises(UserError, match=r"^there is no split 'dev'; there are: train, test$"):
        section.needed("dev")
    with pytest.raises(
        UserError, match=r"give data\.validation_file, or data\.validation_source and"
    ):
        section.needed("validation", ", or x")
    with pytest.raises(UserError, match="there are: train, validation, test"):
        Section().needed("dev")


def test_fields_that_do_not_go_together():
    for fields, message in (
        ({"test_target": "a"}, "data.test_target is given without data.test_source; give both or"),
        (
            {"train_file": "a", "train_source": "b", "train_target": "c"},
            "data.train_file and data.train_source are both given; leave one out",
        ),
    ):
        with pytest.raises(UserError, match=f"^{message}"):
            Section(**fields).check_together()
    Section(train_file="a", test_source="b", test_target="c").check_together()
