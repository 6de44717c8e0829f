"""bAbI: twenty tasks of question answering over short stories (Weston et al., arXiv 1502.05698)."""

import hashlib
import random
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow_datasets as tfds

from transformer.data.vocabulary import FILLER
from transformer.system.errors import UserError
from transformer.system.paths import looked_up

_FILE = re.compile(r"(?:^|/)(?P<folder>[\w-]+)/(?P<task>qa\d+_[\w-]+)_(?P<split>train|test)\.txt$")
_LINE = re.compile(r"(\d+) ([^\t]+)(?:\t([^\t]+)\t[\d ]*)?")
# The words of each fact in `facts`. In version 1.1 no fact has more, nor a question with EOS.
FACT_WORDS = 12
VALIDATION = 10  # of the stories to train on, every tenth is for validation

# A story stays as true as before, and so do its answers, when some words replace others: its names
# may differ, or its world may be a mirror image. In each group here, the words that a task has
# change places, if there are several; words joined by commas do so together.
NAMES = (
    "daniel john fred jeff bill",  # he
    "mary sandra julie",  # she
    "gertrude emily jessica winona",
    "bernhard brian greg julius lily",
    "jason antoine yann sumit",
)
OTHER_WORDS = (
    # Not sheep: it is its own plural, and "a sheep" would become "a wolves".
    "mouse,mice wolf,wolves cat,cats",
    "frog lion rhino swan",
    "gray green white yellow pink red blue",
    "rectangle square sphere triangle",
    "north,n south,s",
    "east,e west,w",
    "left right",  # a task that has only left means the verb
    "above below",
    "apple football milk",
    "bathroom bedroom office garden hallway kitchen park school cinema",
)
# In this task people go to the kitchen because they are hungry: only their names mean nothing.
TASK_OF_MOTIVES = 20
# The number of renamed copies of each training question that "-renamed" adds. Two tasks have short
# stories, so many copies of them cost little. With 10, they were not learned in 18,000 updates.
COPIES = {17: 30, 19: 30}
OTHER_COPIES = 1
RENAMED = "-renamed"

_CITATION = """
@article{weston2015towards,
    title = "Towards {AI}-Complete Question Answering: A Set of Prerequisite Toy Tasks",
    author = "Weston, Jason and Bordes, Antoine and Chopra, Sumit and Rush, Alexander M. and
        van Merri{\\"e}nboer, Bart and Joulin, Armand and Mikolov, Tomas",
    journal = "arXiv:1502.05698",
    year = "2015",
}
"""


class Question(NamedTuple):
    """All lower-cased words and punctuation marks between spaces."""

    story: str  # the facts before the question, and the question
    facts: str  # the same, each filled up to FACT_WORDS
    answer: str  # a word, or the words of a list
    number: int  # of the story in its file, from 0


class Babi(tfds.core.GeneratorBasedBuilder):
    """All tasks together: configs "en" (1,000 training questions a task) and "en-10k".

    With "-renamed" after either, the training split also has each question with other names,
    places, directions, ...: NAMES, OTHER_WORDS and COPIES in this file say which, and how often.

    raw_dir names a folder with one .tar.gz of bAbI as its authors published it; the config names a
    folder in it. This was tried with version 1.1 (tasksv11). Papers mostly used version 1.2
    (tasks_1-20_v1-2), so results on 1.1 are not comparable with theirs. The data's name on disk
    and in info.full_name has a hash of the files that were read, and of the renamed words. So
    versions cannot be confused.

    Features: `story`, `answer`, and `task`, such as qa1_single-supporting-fact. `facts` is the
    story for models that read 12 words at each position: each fact, without its full stop, is
    filled up to 12 words, or a multiple of that, and the question to one less, as EOS follows it.
    Splits: train, validation (every tenth story of each task) and test, task after task.

    Raises UserError for an archive that is missing, broken, or has other files.
    """

    VERSION = tfds.core.Version("1.1.0")
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name=name)
        for name in ("en", "en-10k", f"en{RENAMED}", f"en-10k{RENAMED}")
    ]

    def __init__(self, *, config: str, raw_dir: str | None = None, **kwargs):
        if not raw_dir:
            raise UserError(
                f"babi/{config} is read from the authors' .tar.gz; set data.raw_dir to its folder"
            )
        self._texts = read_archive(Path(raw_dir), config.removesuffix(RENAMED))
        self._renames = config.endswith(RENAMED)
        content = hashlib.sha256()
        for (task, split), text in self._texts.items():
            content.update(f"{task} {split}\n{text}".encode())
        if self._renames:
            of_copies = NAMES, OTHER_WORDS, TASK_OF_MOTIVES, COPIES, OTHER_COPIES
            content.update(repr(of_copies).encode())
        name = f"{config}-local-{content.hexdigest()[:12]}"
        super().__init__(config=tfds.core.BuilderConfig(name=name), **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {"story": text, "facts": text, "answer": text, "task": text}
            ),
            supervised_keys=("story", "answer"),
            homepage="https://github.com/facebookarchive/bAbI-tasks",
            citation=_CITATION,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        return {split: self._generate_examples(split) for split in ("train", "validation", "test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[str, dict[str, str]]]:
        for (task, part), text in self._texts.items():
            if part != ("test" if split == "test" else "train"):
                continue
            groups = interchangeable(text, task) if self._renames and split == "train" else []
            copies = COPIES.get(_number(task), OTHER_COPIES) if groups else 0
            for i, question in enumerate(questions(text.split("\n"), task)):
                is_held_out = question.number % VALIDATION == VALIDATION - 1
                if split == "test" or is_held_out == (split == "validation"):
                    example = question._asdict() | {"task": task}
                    del example["number"]
                    yield f"{task} {i}", example
                    for copy in range(copies):
                        key = f"{task} {i} {copy}"
                        yield key, renamed(example, groups, random.Random(key))


def questions(lines: Iterable[str], name: str = "the text") -> Iterator[Question]:
    """The questions of a file; each sees the facts of its story so far.

    Raises UserError for a line of another form; `name` is the name of the file in it.
    """
    facts: list[str] = []
    number = -1
    for i, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if not (match := _LINE.fullmatch(line.rstrip())):
            raise UserError(f"line {i} of {name} is no line of bAbI: {line[:60]!r}")
        place, text, answer = match.groups()
        if place == "1":  # a story begins
            facts, number = [], number + 1
        if answer is None:
            facts.append(_words(text))
        else:
            question = _words(text)
            yield Question(
                " ".join([*facts, question]),
                " ".join([*(_filled(fact) for fact in facts), _filled(question, more=1)]),
                _words(answer.replace(",", " ")),
                number,
            )


def interchangeable(text: str, task: str) -> list[list[list[str]]]:
    """The groups of a task's words that change places: those with two or more in its text."""
    words = set(re.findall(r"[a-z]+", text.lower()))
    of_task = NAMES if _number(task) == TASK_OF_MOTIVES else NAMES + OTHER_WORDS
    groups = ([member.split(",") for member in group.split()] for group in of_task)
    found = ([member for member in group if member[0] in words] for group in groups)
    return [group for group in found if len(group) > 1]


def renamed(
    example: dict[str, str], groups: list[list[list[str]]], rng: random.Random | None = None
) -> dict[str, str]:
    """The example with the members of each group exchanged at random.

    Without rng, members take their names in the order in which they come up in the story. So two
    examples are equal then if they differ only in names.
    """
    words = example["story"].split(" ")

    def place(member: list[str]) -> int:
        return min((words.index(word) for word in member if word in words), default=len(words))

    other: dict[str, str] = {}
    for group in groups:
        old, new = (
            (group, rng.sample(group, len(group))) if rng else (sorted(group, key=place), group)
        )
        for member, name in zip(old, new, strict=True):
            other |= zip(member, name, strict=True)

    def change(text: str) -> str:
        return " ".join(other.get(word, word) for word in text.split(" "))

    return example | {name: change(example[name]) for name in ("story", "facts", "answer")}


def _words(text: str) -> str:
    return " ".join(re.findall(r"[\w'-]+|[^\w\s]", text.lower()))


def _filled(fact: str, more: int = 0) -> str:
    """A fact without its end mark, filled so that FACT_WORDS divides its length plus `more`."""
    words = fact.rstrip(" .?").split()
    return " ".join(words + [FILLER] * (-(len(words) + more) % FACT_WORDS))


def read_archive(folder: Path, config: str) -> dict[tuple[str, str], str]:
    """The texts of the archive by task and split, in the order of the tasks' numbers."""
    archives = sorted(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise UserError(
            f"data.raw_dir {folder}{looked_up(folder)} has {len(archives)} .tar.gz files; put the "
            "one of bAbI there"
        )
    found = {}
    try:
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                match = _FILE.search(member.name)
                if match and match["folder"] == config:
                    text = archive.extractfile(member).read().decode()
                    found[match["task"], match["split"]] = text
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError) as error:
        raise UserError(f"{archives[0]} is damaged or not a .tar.gz of text: {error}") from error
    tasks = {task for task, _ in found}
    if not tasks or len(found) != 2 * len(tasks):
        raise UserError(
            f"{archives[0]} has no pairs of files {config}/qa<number>_<name>_train.txt and "
            "..._test.txt; give the archive of bAbI"
        )
    return {key: found[key] for key in sorted(found, key=lambda key: (_number(key[0]), key))}


def _number(task: str) -> int:
    return int(re.match(r"qa(\d+)", task)[1])
