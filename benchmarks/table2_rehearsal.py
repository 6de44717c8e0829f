"""Table 2's path in small: from WMT14's downloads to the paper's kind of BLEU, without a network.

    python benchmarks/table2_rehearsal.py runs/rehearsal

The downloads are made up: archives as WMT14's, with sentences of the built-in grammar. All that
follows is real: TFDS unpacks them, train.py trains base and big, made small, and evaluate.py
averages 5 and 20 checkpoints, searches as the paper does and scores. For the true Table 2 leave out
the flags that make the models small (docs/tables.md).
"""

import argparse
import contextlib
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums, downloader

from transformer.data import datasets
from transformer.data.datasets import grammar_en_de
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.system.paths import argument

STATMT = "http://www.statmt.org"
DATASET = "wmt14_translate/de-en"
SMALL = {
    "data.max_source_length": 64,
    "data.max_target_length": 64,
    "tokenizer.vocab_size": 500,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "optimizer.warmup_steps": 150,
    "training.tokens_per_update": 512,
    "training.log_every": 100,
    "training.full_validation_every": 0,
    "training.best_metric": "nll",
}
# By config: how many checkpoints the paper averages, and small sizes.
MODELS = {
    "base": (5, {"model.d_model": 64, "model.d_ff": 256, "model.num_heads": 8}),
    "big": (20, {"model.d_model": 128, "model.d_ff": 512, "model.num_heads": 16}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=argument, help="for the data and the runs")
    parser.add_argument("--steps", type=int, default=600, help="updates of each model")
    args = parser.parse_args()
    data = args.folder / "data"
    with fabricated_downloads(archives()):
        datasets.prepare(datasets.get_builder(DATASET, data_dir=str(data)))
    for name, (average, sizes) in MODELS.items():
        fields = {
            **SMALL,
            **sizes,
            "data.data_dir": data,
            "training.steps": args.steps,
            "training.checkpoint_every": max(1, args.steps // average),
        }
        workdir = f"--workdir={args.folder / name}"
        flags = [f"--config.{field}={value}" for field, value in fields.items()]
        call("train", f"--config={ROOT / 'configs' / name}.py", workdir, *flags)
        call("evaluate", workdir, "--checkpoint=average", f"--average_last={average}")
        scores = json.loads((args.folder / name / "eval/latest/scores.json").read_text())
        bleu = scores["bleu_tokenized_compound_split"]["score"]
        search = f"beam {scores['beam_size']}, alpha {scores['length_penalty']['alpha']}"
        print(f"{name}: tokenised, compound-split BLEU {bleu:.2f}; {search}; average of {average}")


def call(script: str, *flags: str) -> None:
    subprocess.run([sys.executable, str(ROOT / f"{script}.py"), *flags], check=True)


def archives() -> dict[str, bytes]:
    """What WMT14 German-English is downloaded from, by URL."""
    pairs = list(grammar_en_de.examples())[:1200]
    europarl, crawl, news = pairs[:800], pairs[800:1000], pairs[1000:1120]
    test13, test14 = pairs[1120:1160], pairs[1160:1200]

    def both(stem: str, pairs) -> dict[str, str]:
        return {
            f"{stem}.{language}": "".join(f"{getattr(pair, language)}\n" for pair in pairs)
            for language in ("de", "en")
        }

    def sgm(kind: str, lines: list[str]) -> str:
        segments = (f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(lines, start=1))
        return f'<{kind}set setid="newstest">\n{"".join(segments)}</{kind}set>\n'

    return {
        f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz": tgz(
            both("training/europarl-v7.de-en", europarl)
        ),
        f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz": tgz(both("commoncrawl.de-en", crawl)),
        f"{STATMT}/wmt14/training-parallel-nc-v9.tgz": tgz(
            both("training/news-commentary-v9.de-en", news)
        ),
        "http://data.statmt.org/wmt19/translation-task/dev.tgz": tgz(
            {
                **both("dev/newstest2013", test13),
                "dev/newstest2014-deen-src.de.sgm": sgm("src", [pair.de for pair in test14]),
                "dev/newstest2014-deen-ref.en.sgm": sgm("ref", [pair.en for pair in test14]),
            }
        ),
    }


def tgz(files: Mapping[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@contextlib.contextmanager
def fabricated_downloads(files: Mapping[str, bytes]) -> Iterator[None]:
    """TFDS downloads from these URLs alone, whose checksums it takes for the recorded ones."""
    infos = {
        url: checksums.UrlInfo(
            tfds.core.utils.Size(len(content)),
            hashlib.sha256(content).hexdigest(),
            url.rpartition("/")[2],
        )
        for url, content in files.items()
    }

    class Response(io.BytesIO):
        headers: dict = {}
        url = ""

    @contextlib.contextmanager
    def open_url(url: str, **_):
        response = Response(files[url])
        response.url = url
        yield response, iter([files[url]])

    with (
        mock.patch.object(downloader, "_open_url", open_url),
        mock.patch.object(checksums, "get_all_url_infos", return_value=infos),
        mock.patch.object(tfds.core.DatasetBuilder, "url_infos", infos),
    ):
        yield


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
