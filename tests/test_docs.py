"""README.md and docs/: commands can be parsed, links lead somewhere, code and fields exist."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from small_configs import config_of

from transformer.data.batches import Batch
from transformer.decoding.config import DecodingConfig
from transformer.models.family import Sizes
from transformer.models.functional import FunctionalModel
from transformer.runs.provenance import ROOT
from transformer.runs.run_config import type_of_field
from transformer.system.sharding import MeshConfig, make_mesh, state_sharding

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# A script and the words after it, also on lines that go on after a backslash or, in YAML, with
# another flag.
COMMAND = re.compile(
    r"\bpython3? ((?:benchmarks/|tests/)?\w+\.py|-m transformer[\w.]+)"
    r"((?:(?: +|\s*\\\n *|\n +(?=--))[^\s`|&\\']+)*)"
)
COMMANDS = [
    pytest.param(script, words.replace("\\\n", " ").split(), id=f"{page.name}-{script}-{number}")
    for page in PAGES
    if page.name not in ("add-a-family.md", "add-an-option.md")  # test_doors.py runs theirs
    for number, (script, words) in enumerate(COMMAND.findall(page.read_text()))
]
# Fields of earlier commits, which docs/experiments.md names.
REMOVED = {
    *("data.both_directions", "training.r_drop", "training.bleu_every"),
    *("optimizer.learning_rate_scale", "optimizer.cooldown_start", "optimizer.cooldown_steps"),
}


def each_page(test):
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)(test)


def blocks(page, languages: str) -> list[str]:
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", page.read_text(), re.M | re.S)


def names(page) -> list[str]:
    """What stands between backticks outside of blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", text)


def anchors(page) -> set[str]:
    """The headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def file_of(script: str) -> Path:
    """Of script.py, or of -m and a module."""
    if not script.startswith("-m "):
        return ROOT / script
    path = ROOT / script.removeprefix("-m ").replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def test_there_are_commands():
    assert len(COMMANDS) > 60


def test_first_blocks_of_the_readme():
    """CI pastes them by number: .ci/run."""
    first, second, third = blocks(ROOT / "README.md", "bash")
    assert first.endswith("&& python train.py && python evaluate.py --workdir=runs/demo\n")
    assert second.endswith("| python translate.py --workdir=runs/demo\n")
    assert third.endswith("&& python -m pytest\n")


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
@pytest.mark.parametrize(("script", "words"), COMMANDS)
def test_flags_are_known(script, words, monkeypatch):
    sources = [file_of(script), *(ROOT / "transformer").rglob("*.py")]
    defined = "|".join(path.read_text() for path in sources)
    define = r"(?:DEFINE_\w+|add_argument|string|integer)"
    known = set(re.findall(rf"{define}\(\s*\"(?:--)?(\w+)\"", defined))
    known |= {"config", "help"} | {field.name for field in dataclasses.fields(DecodingConfig)}
    given = [word for word in words if word.startswith("--") and word != "--"]
    assert not [w for w in given if re.match(r"--(\w+)", w)[1] not in known]

    fields = [word for word in given if word.startswith("--config.")]
    files = [word for word in words if re.fullmatch(r"(--config=)?configs/\w+\.py", word)]
    file = files[0].removeprefix("--config=") if files else "configs/demo.py"
    values = [re.sub(r"=.*", _a_value, field) for field in fields]
    _, others = config_of([script, f"--config={file}", *values], monkeypatch)
    assert not others


def _a_value(match: re.Match) -> str:
    """What stands for something of the reader's, such as "$SCRATCH/data, without the quote."""
    return match[0].replace('"', "").replace("$", "")


@each_page
def test_modules_are_there(page):
    modules = re.findall(r"python -m (transformer[\w.]+)", page.read_text())
    assert not [name for name in modules if not file_of(f"-m {name}").exists()]


@each_page
def test_shell_can_be_parsed(page):
    for script in blocks(page, "bash|sh"):
        subprocess.run([shutil.which("bash"), "-n"], input=script, text=True, check=True)


@each_page
def test_yaml_can_be_parsed(page):
    for text in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(text), dict)


@each_page
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not re.match("https?:", link) and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            broken.append(link)
    assert not broken


@each_page
def test_code_is_there(page):
    """Files by their path, here or below transformer/, alone or as file.py:name."""
    missing = []
    for text in names(page):
        if not (match := re.fullmatch(r"([\w/]+/[\w-]+\.(?:py|md))(?::(\w+))?", text)):
            continue
        found = [root / match[1] for root in (ROOT, ROOT / "transformer")]
        found = [path for path in found if path.exists()]
        name = match[2]
        if not found or (name and not re.search(rf"\b{name}\b", found[0].read_text())):
            missing.append(text)
    assert not missing


@each_page
def test_fields_are_there(page):
    sections = "task|data|tokenizer|model|optimizer|training|decoding|mesh"
    for text in names(page):
        if (match := re.match(rf"({sections})\.\w+(?==|$)", text)) and match[0] not in REMOVED:
            type_of_field(match[0])


def test_the_notebook():
    """Every cell runs, and prints what the notebook shows."""
    notebook = json.loads((ROOT / "docs/sentence-to-logits.ipynb").read_text())
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), names)
            shown = "".join(text for output in cell["outputs"] for text in output["text"])
            assert printed.getvalue() == shown
    assert names["logits_BTV"].shape == (1, 21, 280)


def test_what_is_said_of_versions_agrees():
    """Of the project: pyproject.toml, CITATION.cff and CHANGELOG.md. And extras have files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    latest = re.search(r"^## (?!Unreleased)(\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert project["version"] == citation["version"] == latest
    files = {path.stem.removeprefix("requirements-") for path in ROOT.glob("requirements-*.txt")}
    extras = re.search(r"for name in \((.*?)\)", (ROOT / "setup.py").read_text())[1]
    assert set(re.findall(r'"([\w-]+)"', extras)) == files


def test_the_family_of_the_page_can_be_used(tmp_path, monkeypatch):
    """docs/add-a-family.md: cached decoding is the forward pass, whose loss has gradients."""
    page = ROOT / "docs" / "add-a-family.md"
    (tmp_path / "bag.py").write_text(blocks(page, "python")[0])
    spec = importlib.util.spec_from_file_location("bag", tmp_path / "bag.py")
    bag = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bag", bag)  # where dataclasses looks
    spec.loader.exec_module(bag)

    family, config = bag.FAMILY, bag.BagConfig("bag", 5, "float32")
    sizes = Sizes(11, 13, joint=False, max_source_length=7, max_target_length=7)
    model = FunctionalModel(lambda rngs: family.build(config, sizes, rngs), family.sharding)
    params = model.init(0)
    src = np.array([[4, 5, 6], [7, 2, 0]])
    tgt_out = np.array([[8, 9, 2, 0], [10, 12, 11, 2]])
    tgt_in = np.roll(tgt_out, 1, axis=1) * (tgt_out > 0)
    tgt_in[:, 0] = 1
    batch = Batch(src, (src > 0) * 1, tgt_in, tgt_out, (tgt_out > 0) * 1)

    @jax.jit
    def both(params):
        bound, nll = model.bind(params), 0.0
        cache = bound.init_cache(bound.encode(src), src, 1, 4)
        for t in range(4):
            logits, cache = bound.decode_step(tgt_in[:, t], cache)
            log_probs = jax.nn.log_softmax(logits)[np.arange(2), tgt_out[:, t]]
            nll -= jnp.sum(log_probs, where=tgt_out[:, t] > 0)
        loss = jax.value_and_grad(lambda p: model.bind(p).loss(batch, None, 0.0).loss)
        return nll, loss(params)

    nll, (loss, grads) = both(params)
    np.testing.assert_allclose(nll, loss, rtol=1e-6)
    assert all(np.any(grad) for grad in jax.tree.leaves(grads))
    shardings = state_sharding(make_mesh(MeshConfig(0, 1, 1)), params, family.sharding)
    assert jax.tree.structure(shardings) == jax.tree.structure(params)
    assert family.flops(config, sizes, np.array([3]), np.array([4])).tolist() == [1560.0]
