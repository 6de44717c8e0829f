"""The files of a treebank as pairs of sequences."""

import gzip

import pytest

from configs import parsing_paper
from transformer.data.treebank import TreebankConfig, TreePairs
from transformer.system.errors import UserError


def config(tmp_path, **changes):
    fields = parsing_paper.get_config().data.to_dict()
    return TreebankConfig(**{**fields, "raw_dir": str(tmp_path), **changes})


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(text.encode()) if path.suffix.lower() == ".gz" else text.encode()
    )


def test_sections_by_patterns(tmp_path):
    for section in ("01", "02", "10", "21", "22"):
        write(tmp_path / f"wsj/{section}/wsj_{section}01.mrg", f"( (S (NP-SBJ (NN w{section}))))\n")
    found = TreePairs(config(tmp_path), "train")
    assert list(found.pairs()) == [
        (f"w{section}", "(S (NP XX )NP )S") for section in ("02", "10", "21")
    ]
    assert TreePairs(config(tmp_path), "validation").trees[0].leaves


@pytest.mark.parametrize("name", ["train.trees.gz", "train.trees.GZ"])
def test_zipped_reversed_tagged(name, tmp_path):
    write(tmp_path / name, "(S1 (S (DT the) (NN dog)))\n(S1 (S (-NONE- *)))\n")
    own = {"train_trees": "train.trees", "reverse_source": True, "tags": "gold"}
    found = TreePairs(config(tmp_path, **own), "train")
    assert list(found.pairs()) == [("dog the", "(S DT NN )S")]
    other = TreePairs(config(tmp_path, **own | {"tags": "XX"}), "train")
    assert found.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_dir": "nowhere"}, "data.raw_dir is nowhere, which is no folder"),
        ({}, r"data.train_trees: there is no file .*/wsj/0\[2-9\]/\*.mrg, nor wsj"),
        ({"train_trees": "empty"}, "no trees in .*empty"),
        ({"train_trees": "bad"}, "bad, line 2: the tree that begins here is not closed"),
        ({"train_trees": ""}, "no trees for the train split; give data.train_trees"),
        ({"train_trees": "/wsj/*.mrg"}, r"data.train_trees: '/wsj/\*.mrg' is no pattern of files"),
        ({"tags": "YY"}, "data.tags is 'YY'"),
    ],
)
def test_refused(tmp_path, changes, message):
    write(tmp_path / "empty", "\n")
    write(tmp_path / "bad", "(S (NN a))\n(S (NN a)\n")
    with pytest.raises(UserError, match=message):
        TreePairs(config(tmp_path, **changes), "train")
