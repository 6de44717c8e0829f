"""The base of our builders of sentence pairs: their order stays, so lines can be compared."""

from collections.abc import Iterable, Iterator

import tensorflow_datasets as tfds


class OrderedPairs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """languages: the names of source and target. A pair that changes needs a new VERSION."""

    VERSION = tfds.core.Version("1.0.0")
    languages: tuple[str, str]
    description: str
    homepage: str | None = None
    citation: str | None = None

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.description,
            features=tfds.features.Translation(languages=self.languages),
            supervised_keys=self.languages,
            homepage=self.homepage,
            citation=self.citation,
            disable_shuffling=True,
        )

    def _generate_examples(
        self, pairs: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        for i, pair in enumerate(pairs):
            yield i, dict(zip(self.languages, pair, strict=True))
