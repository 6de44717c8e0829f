import json
import os

import jax
import jax.numpy as jnp
import pytest

from transformer.runs.integrity import (
    INVENTORY,
    allow,
    check_seal,
    digest,
    read_signed,
    seal,
    signed,
)
from transformer.system.errors import UserError

# --- Arrays -------------------------------------------------------------------------------


def test_every_bit_and_place_counts_in_a_digest():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros((2,), jnp.int32)}
    others = [
        {**tree, "a": tree["a"].at[1, 2].set(5.0000005)},  # the lowest bit
        {**tree, "a": tree["a"].at[0, 0].set(-0.0)},
        {**tree, "a": tree["a"][:, ::-1]},
        {**tree, "a": tree["a"][::-1]},
        {**tree, "b": jnp.ones((2,), jnp.int32)},
        {"a": tree["a"], "c": tree["b"]},
    ]
    digests = [digest(x) for x in (tree, *others)]
    assert len(set(digests)) == len(digests)
    assert digest(jax.tree.map(jnp.array, tree)) == digests[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_digests_of_other_types(dtype):
    x = jnp.arange(7).astype(dtype)
    assert digest({"x": x}) != digest({"x": x.at[3].set(x[4])})


# --- Files --------------------------------------------------------------------------------


def test_what_is_signed_can_be_read(tmp_path):
    value = {"x": [1, 1 / 3, None, "ä"], "y": {"z": True}}
    (tmp_path / "x").write_text(json.dumps(signed(value)))
    assert read_signed(tmp_path / "x", tmp_path) == value


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"x": 1}', b"\xff", 99_999 * b"["])
def test_what_is_not_signed_is_nothing(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert read_signed(tmp_path / "x", tmp_path) is None
    value = json.dumps(signed({"x": 1})).replace("1", "2", 1)
    (tmp_path / "x").write_text(value)
    assert read_signed(tmp_path / "x", tmp_path) is None
    assert read_signed(tmp_path / "y", tmp_path) is None


# --- What belongs to all checkpoints ------------------------------------------------------


NAMES = "config.json", "tokenizer.model", "tokenizer.source.model", "labels.json"


@pytest.fixture
def sealed(tmp_path):
    for name in ("config.json", "tokenizer.source.model", "labels.json", "metrics.jsonl"):
        (tmp_path / name).write_text(f"the content of {name}")
    seal(tmp_path, NAMES)
    return tmp_path


def test_an_altered_bit_is_noticed(sealed):
    check_seal(sealed)
    (sealed / "metrics.jsonl").write_text("goes on")
    check_seal(sealed)
    for name in ("config.json", "tokenizer.source.model", "labels.json"):
        content = (sealed / name).read_bytes()
        (sealed / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(UserError, match=f"{name} has changed since training wrote it"):
            check_seal(sealed)
        (sealed / name).write_bytes(content)
    (sealed / "labels.json").unlink()
    with pytest.raises(UserError, match=r"labels\.json is missing"):
        check_seal(sealed)


def test_a_process_may_die_while_it_writes(sealed):
    allow(sealed, "config.json", "more steps")
    check_seal(sealed)
    (sealed / "config.json").write_text("more steps")
    check_seal(sealed)
    seal(sealed, NAMES)
    (sealed / "config.json").write_text("the content of config.json")
    with pytest.raises(UserError, match=r"config\.json has changed"):
        check_seal(sealed)


def test_a_seal_that_is_damaged(sealed):
    (sealed / INVENTORY).write_text((sealed / INVENTORY).read_text().replace("a", "b", 1))
    with pytest.raises(UserError, match=r"files\.json is damaged"):
        check_seal(sealed)


def test_a_file_that_was_put_there(sealed):
    """A joint tokenizer takes the place of two, and so would be used."""
    (sealed / "tokenizer.model").write_text("more")
    with pytest.raises(UserError, match=r"tokenizer\.model was not there when training wrote"):
        check_seal(sealed)


def test_an_earlier_seal_says_nothing_of_files_it_does_not_know(sealed):
    (sealed / "tokenizer.model").write_text("of an earlier commit")
    content = json.loads((sealed / INVENTORY).read_text())
    (sealed / INVENTORY).write_text(json.dumps(signed({"files": content["files"]})))
    check_seal(sealed)


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "link", "pipe", "x\0y", "a" * 300])
def test_a_strangers_seal_opens_no_other_file(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "link").symlink_to("/dev/zero")
    os.mkfifo(workdir / "pipe")
    (workdir / INVENTORY).write_text(json.dumps(signed({"files": {name: []}})))
    with pytest.raises((UserError, OSError), match=r"outside of|is a pipe|no name of|too long"):
        check_seal(workdir)


@pytest.mark.parametrize(
    "content", [{}, {"files": []}, {"files": {"config.json": 3}}, {"files": {}, "absent": [3]}]
)
def test_a_seal_of_another_shape_is_damaged(tmp_path, content):
    (tmp_path / INVENTORY).write_text(json.dumps(signed(content)))
    with pytest.raises(UserError, match=r"files\.json is damaged"):
        check_seal(tmp_path)
