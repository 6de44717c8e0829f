"""Ranks paragraphs about titles by tf-idf: documents to summarise, as JSON.

    python -m transformer extract --input=articles --output=train.jsonl --max_words=8000

`articles` has a folder for each article, with title.txt, an optional summary.txt and any number of
other .txt files, whose paragraphs are separated by empty lines. A line of the output is
{"name": ..., "title": ..., "document": ..., "summary": ...}; data.train_file takes it.
"""

import json

from absl import flags

from transformer.system.paths import DEFINE_path, given

INPUT = DEFINE_path("input", None, "A folder with a folder for each article.")
OUTPUT = DEFINE_path("output", None, "The JSON lines to write.")
MAX_WORDS = flags.DEFINE_integer(
    "max_words", 8000, "Words of a document, its title included.", lower_bound=1
)


def main() -> None:
    from transformer.data.extraction import extract, read_articles
    from transformer.data.text_files import packed
    from transformer.system.files import check_can_write, write_named

    folder, path = given(INPUT, OUTPUT)
    check_can_write(path)
    lines = []
    for article in read_articles(folder):
        document = extract(article.title, article.paragraphs, MAX_WORDS.value)
        record = {"name": article.name, "title": article.title, "document": document}
        lines.append(json.dumps(record | {"summary": article.summary}, ensure_ascii=False) + "\n")
    write_named(path, packed(path, "".join(lines).encode()))
    print(f"{len(lines)} documents in {path}")
