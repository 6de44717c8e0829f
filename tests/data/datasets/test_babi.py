import io
import random
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from configs import babi
from transformer.data import datasets
from transformer.data.datasets.babi import Question, interchangeable, questions, renamed
from transformer.data.sources import DataConfig, open_source
from transformer.system.errors import UserError

SHARED = Path(__file__).parents[4] / "shared" / "data" / "babi"

STORY = """\
1 Mary got the milk.
2 John moved to Mary's bedroom.
3 What is Mary carrying? \tmilk\t1
4 Mary got the apple there.
5 What is Mary carrying? \tmilk,apple\t1 4
1 The bear's den is big.
2 Is it big?\tyes\t1"""


def test_questions_of_stories():
    facts = "mary got the milk . john moved to mary's bedroom ."
    asked = "what is mary carrying ?"
    # Each fact has 12 words; the question has 11, and EOS follows it.
    filled = [
        f"mary got the milk {'_ ' * 8}john moved to mary's bedroom {'_ ' * 7}",
        f"mary got the apple there {'_ ' * 7}",
        "what is mary carrying _ _ _ _ _ _ _",
    ]
    den = f"the bear's den is big {'_ ' * 7}is it big _ _ _ _ _ _ _ _"
    assert list(questions(STORY.split("\n"))) == [
        Question(f"{facts} {asked}", filled[0] + filled[2], "milk", 0),
        Question(f"{facts} mary got the apple there . {asked}", "".join(filled), "milk apple", 0),
        Question("the bear's den is big . is it big ?", den, "yes", 1),
    ]


def test_a_fact_of_more_words_fills_two_positions():
    [question] = questions([f"1 {'a ' * 13}.", f"2 {'b ' * 12}?\tc\t1"])
    assert question.facts.split() == [*"a" * 13, *"_" * 11, *"b" * 12, *"_" * 11]


def test_a_line_of_another_form():
    with pytest.raises(UserError, match=r"line 2 of qa7 is no line of bAbI: 'Mary'"):
        list(questions(["1 Mary got it.", "Mary"], "qa7"))


def archive(folder: Path, files: dict[str, str]) -> str:
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "babi.tar.gz", "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return str(folder)


def stories(count: int, name: str) -> str:
    """Each asks twice."""
    return "".join(f"1 {name} {i}.\n2 Who?\t{i}\t1\n3 Where?\tin {i}\t1\n" for i in range(count))


FILES = {
    "all/en/qa10_tenth_train.txt": stories(11, "ten"),
    "all/en/qa10_tenth_test.txt": stories(2, "ten"),
    "all/en/qa2_second_train.txt": stories(20, "two"),
    "all/en/qa2_second_test.txt": stories(1, "two"),
    "all/en-10k/qa2_second_train.txt": stories(3, "many"),
    "all/en-10k/qa2_second_test.txt": stories(1, "many"),
    "all/LICENSE": "",
}


@pytest.fixture
def data(tmp_path):
    places = {"data_dir": str(tmp_path / "data"), "raw_dir": archive(tmp_path / "raw", FILES)}
    changes = {"source_language": "story"} | places
    return DataConfig(**babi.get_config().data.to_dict() | changes)


def test_the_builder(data, tmp_path):
    splits = {}
    for split in ("train", "validation", "test"):
        splits[split] = list(open_source(data, split).pairs())
    # Every tenth story is for validation, whole: story 9 of both, and story 19.
    assert splits["validation"] == [
        ("two 9 . who ?", "9"),
        ("two 9 . where ?", "in 9"),
        ("two 19 . who ?", "19"),
        ("two 19 . where ?", "in 19"),
        ("ten 9 . who ?", "9"),
        ("ten 9 . where ?", "in 9"),
    ]
    assert len(splits["train"]) == 2 * (20 - 2 + 11 - 1)
    assert not set(splits["train"]) & set(splits["validation"])
    assert [story for story, _ in splits["test"]] == [
        "two 0 . who ?", "two 0 . where ?",
        "ten 0 . who ?", "ten 0 . where ?", "ten 1 . who ?", "ten 1 . where ?",
    ]  # fmt: skip


def test_renamed_copies_are_for_training_only(tmp_path):
    files = FILES | {"all/en/qa19_path_train.txt": stories(10, "mary sandra")}
    files["all/en/qa19_path_test.txt"] = stories(10, "mary sandra")
    places = {"data_dir": str(tmp_path / "data"), "raw_dir": archive(tmp_path / "raw", files)}

    def examples(config: str) -> dict[str, list[tuple[bytes, ...]]]:
        builder = datasets.get_builder(f"babi/{config}", **places)
        datasets.prepare(builder)
        return {
            split: [(x["task"], x["story"], x["answer"]) for x in builder.as_data_source(split)]
            for split in ("train", "validation", "test")
        }

    plain, more = examples("en"), examples("en-renamed")
    assert (more["validation"], more["test"]) == (plain["validation"], plain["test"])
    assert len(plain["train"]) == 2 * (18 + 10 + 9)
    of_paths = [x for x in more["train"] if x[0] == b"qa19_path"]
    assert len(of_paths) == 2 * 9 * (1 + 30)
    # The others have nothing to rename.
    assert len(more["train"]) - len(of_paths) == 2 * (18 + 10)
    assert {x[1][:11] for x in of_paths} == {b"mary sandra", b"sandra mary"}
    assert {x[1][:11] for x in more["test"] if x[0] == b"qa19_path"} == {b"mary sandra"}


def test_words_of_a_task_change_places():
    task = "Mary left the milk. Sandra is north (n) of John and south (s) of the north."
    groups = interchangeable(task, "qa1_a")
    # A left without a right is no direction.
    assert groups == [[["mary"], ["sandra"]], [["north", "n"], ["south", "s"]]]
    example = {"story": "mary n", "facts": "mary north sandra _", "answer": "n s s", "task": "qa1"}
    found = {tuple(renamed(example, groups, random.Random(seed)).values()) for seed in range(50)}
    assert found == {
        ("mary n", "mary north sandra _", "n s s", "qa1"),
        ("sandra n", "sandra north mary _", "n s s", "qa1"),
        ("mary s", "mary south sandra _", "s n n", "qa1"),
        ("sandra s", "sandra south mary _", "s n n", "qa1"),
    }
    # Without chance, all four become the same; other relations do not.
    copies = [dict(zip(example, values, strict=True)) for values in found]
    forms = [renamed(copy, groups)["facts"] for copy in copies]
    assert forms == 4 * ["mary north sandra _"]
    assert renamed(example | {"facts": "mary north mary _"}, groups)["facts"] not in forms
    motives = interchangeable("Jason and Yann went to the kitchen and the garden.", "qa20_motives")
    assert motives == [[["jason"], ["yann"]]]


def test_folders_of_the_archive_and_other_archives_are_other_data(data, tmp_path):
    def name(config="en", raw="raw"):
        given = {"data_dir": data.data_dir, "raw_dir": str(tmp_path / raw)}
        return datasets.get_builder(f"babi/{config}", **given).info.full_name

    changed = FILES | {"all/en/qa2_second_test.txt": stories(1, "Two")}
    archive(tmp_path / "other", changed)
    assert name().startswith("babi/en-local-")
    assert name() == name()
    assert len({name(), name("en-10k"), name(raw="other"), name("en-10k", "other")}) == 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, r"data\.raw_dir .*raw has 0 \.tar\.gz files"),
        ({"en/qa1_a_train.txt": "1 A b.\n"}, r"has no pairs of files en/qa<number>_<name>_train"),
        ({"en-10k/qa1_a_train.txt": "", "en-10k/qa1_a_test.txt": ""}, "has no pairs of files en/"),
        (b"not an archive", r"babi\.tar\.gz is damaged or not a \.tar\.gz"),
    ],
)
def test_refused_archives(tmp_path, files, message):
    (tmp_path / "raw").mkdir()
    if isinstance(files, bytes):
        (tmp_path / "raw" / "babi.tar.gz").write_bytes(files)
    elif files:
        archive(tmp_path / "raw", files)
    given = {"data_dir": str(tmp_path / "data"), "raw_dir": str(tmp_path / "raw")}
    with pytest.raises(UserError, match=message):
        datasets.get_builder("babi/en", **given)


def test_it_needs_a_raw_dir(tmp_path):
    with pytest.raises(UserError, match=r"babi/en is read from .* set data\.raw_dir"):
        datasets.get_builder("babi/en", data_dir=str(tmp_path))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/babi")
def test_version_1_1(tmp_path):
    builder = datasets.get_builder("babi/en", data_dir=str(tmp_path), raw_dir=str(SHARED))
    assert builder.info.full_name == "babi/en-local-ce4f3e2957bd/1.1.0"
    builder._texts = {
        key: text for key, text in builder._texts.items() if key[0][:4] in ("qa3_", "qa19")
    }
    splits = {
        split: [example for _, example in examples]
        for split, examples in builder._split_generators(None).items()
    }
    counts = {name: len(examples) for name, examples in splits.items()}
    assert counts == {"train": 1_800, "validation": 200, "test": 2_000}
    question = splits["test"][1_000]
    facts = question.pop("facts").split()
    assert len(facts) == 6 * 12 - 1
    assert facts[48:] == [
        *["the", "kitchen", "is", "east", "of", "the", "bedroom", "_", "_", "_", "_", "_"],
        *["how", "do", "you", "go", "from", "the", "bathroom", "to", "the", "hallway", "_"],
    ]
    assert question == {
        "story": "the garden is west of the bathroom . the bedroom is north of the hallway . "
        "the office is south of the hallway . the bathroom is north of the bedroom . "
        "the kitchen is east of the bedroom . how do you go from the bathroom to the hallway ?",
        "answer": "s s",
        "task": "qa19_path-finding",
    }
    # A token of the config is a word. So many stories are longer than the config takes.
    limit = babi.get_config().data.max_source_length - 1  # the last token is EOS
    examples = splits["train"]
    assert not [x for x in examples if (len(x["facts"].split()) + 1) % 12]
    too_long = [x["task"] for x in examples if len(x["facts"].split()) > limit]
    assert too_long == 25 * ["qa3_three-supporting-facts"]


SIDES = {
    "north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0),
    "above": (0, 1), "below": (0, -1), "right": (1, 0), "left": (-1, 0),
}  # fmt: skip
RELATION = r"the ([\w ]+?) (?:is )?(?:to the )?(\w+)(?: of)? the ([\w ]+)"


def what_follows(story: str) -> set[str]:
    """The answers that are true in a story of task 17 or 19."""
    *facts, question = re.split(r" [.?] ?", story)[:-1]
    triples = [re.fullmatch(RELATION, fact).groups() for fact in facts]
    sides = {(a, b): np.array(SIDES[side]) for a, side, b in triples}  # where a is, seen from b
    sides |= {(b, a): -side for (a, b), side in sides.items()}
    if way := re.fullmatch(r"how do you go from the (\w+) to the (\w+)", question):
        letters = {tuple(side): name[0] for name, side in [*SIDES.items()][:4]}
        begin, end = way.groups()
        return {
            f"{letters[*sides[middle, begin]]} {letters[*sides[end, middle]]}"
            for middle, of in sides
            if of == begin and (end, middle) in sides
        }
    a, side, b = re.fullmatch(f"is {RELATION}", question).groups()
    between = [sides[a, c] + sides[c, b] for c, of in sides if of == b and (a, c) in sides]
    where = sides[a, b] if (a, b) in sides else between[0]
    return {"yes" if where @ SIDES[side] > 0 else "no"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/babi")
@pytest.mark.parametrize("name", ["qa17_positional-reasoning", "qa19_path-finding"])
def test_answers_of_renamed_stories_are_still_true(name):
    with tarfile.open(next(SHARED.glob("*.tar.gz"))) as tar:
        text = tar.extractfile(f"en/{name}_train.txt").read().decode()
    groups, rng, stories = interchangeable(text, name), random.Random(1), set()
    for question in questions(text.split("\n")):
        assert question.answer in what_follows(question.story)
        example = question._asdict() | {"task": name}
        for _ in range(2):
            other = renamed(example, groups, rng)
            assert other["answer"] in what_follows(other["story"])
            stories.add(other["story"])
    assert len(stories) > 0.9 * 2 * 1000
