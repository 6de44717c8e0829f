"""Multi30k: 29,000 image captions in English, German, French and Czech."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from transformer.data.datasets import folders
from transformer.data.datasets.ordered_pairs import OrderedPairs
from transformer.data.pairs import TextPairs

LANGUAGES = ("en", "de", "fr", "cs")
URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/"
)
TOKENIZED = "-tok"  # ends the names of configs of tokenised text
# Split, stem of its files, languages that have it.
SPLITS = (
    ("train", "train", LANGUAGES),
    ("validation", "val", LANGUAGES),
    ("test_2016_flickr", "test_2016_flickr", LANGUAGES),
    ("test_2017_flickr", "test_2017_flickr", ("en", "de", "fr")),
    ("test_2017_mscoco", "test_2017_mscoco", ("en", "de", "fr")),
    ("test_2018_flickr", "test_2018_flickr", LANGUAGES),
)

_DESCRIPTION = """
Multi30k, task 1: captions of Flickr and MS COCO images with translations by professionals.
For non-commercial research use; the images have terms of their own.
"""
_CITATION = """
@inproceedings{elliott-etal-2016-multi30k,
    title = "Multi30{K}: Multilingual {E}nglish-{G}erman Image Descriptions",
    author = "Elliott, Desmond and Frank, Stella and Sima'an, Khalil and Specia, Lucia",
    booktitle = "Proceedings of the 5th Workshop on Vision and Language",
    year = "2016",
    doi = "10.18653/v1/W16-3210",
    pages = "70--74",
}
"""


class Multi30k(OrderedPairs):
    """Task 1 of Multi30k: configs "en-de", "de-en", "en-fr", ... of the raw text, and
    "en-de-tok", ... of the authors' lower-cased, normalised, Moses-tokenised text.

    The files are downloaded from the authors' repository at a fixed commit and checked against
    checksums.tsv. Alternatively raw_dir names a folder that holds them: train.en.gz or train.en
    (train.lc.norm.tok.en) and so on. The train files must be there; other splits whose files are
    missing are left out.

    Local files may differ from the original ones, so data prepared from a raw_dir must not be
    mistaken for the download or for another raw_dir. Their config, the directory on disk and
    info.full_name therefore say "en-de-local-<hash of the files>", and a changed file is prepared
    again.

    Raises UserError for files that are missing, broken, or do not match in length.
    """

    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="-".join(pair) + kind)
        for kind in ("", TOKENIZED)
        for pair in itertools.permutations(LANGUAGES, 2)
    ]
    description = _DESCRIPTION
    homepage = "https://github.com/multi30k/dataset"
    citation = _CITATION

    def __init__(self, *, config: str | None = None, raw_dir: str | None = None, **kwargs):
        self._pair = config or self.BUILDER_CONFIGS[0].name
        self._raw_files = None
        if raw_dir:
            names = {
                split: [Path(file).name.removesuffix(".gz") for file in both]
                for split, both in files(self._pair).items()
            }
            advice = "leave raw_dir unset to download Multi30k"
            self._raw_files = folders.find(Path(raw_dir), names, advice, may_lack_one=True)
            content = folders.fingerprint(itertools.chain(*self._raw_files.values()))
            name = f"{self._pair}-local-{content}"
            config = tfds.core.BuilderConfig(name=name)
        super().__init__(config=config, **kwargs)

    @property
    def languages(self) -> tuple[str, str]:
        return tuple(self._pair.removesuffix(TOKENIZED).split("-"))

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        paths = self._raw_files or dl_manager.download(urls(self._pair))
        return {
            split: self._generate_examples(TextPairs(*([str(path)] for path in both)).pairs())
            for split, both in paths.items()
        }


def files(config: str) -> dict[str, list[str]]:
    """The files in the authors' repository for each split that both languages have."""
    languages = config.removesuffix(TOKENIZED).split("-")
    folder, ending = ("tok/", "lc.norm.tok.{}") if config.endswith(TOKENIZED) else ("raw/", "{}.gz")
    return {
        split: [f"{folder}{stem}.{ending.format(language)}" for language in languages]
        for split, stem, available in SPLITS
        if set(languages) <= set(available)
    }


def urls(config: str) -> dict[str, list[str]]:
    """The files to download for each split."""
    return {split: [URL + file for file in both] for split, both in files(config).items()}
