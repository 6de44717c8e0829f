"""README.md, docs/ and results/: links lead somewhere, and what is named is in the code."""

import ast
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import pkgutil
import re
import shlex
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
from transformer.system import commands
from transformer.system.sharding import MeshConfig, make_mesh, state_sharding

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = [ROOT / "RESULTS.md", *sorted((ROOT / "results").glob("*.md"))]  # generated, but for one
FOLDERS = "transformer", "configs", "benchmarks", "tests"
CODE = [*ROOT.glob("*.py"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))]
# A script and the words after it, also on lines that go on after a backslash or, in YAML, with
# another flag.
COMMAND = re.compile(
    r"\bpython3? ((?:benchmarks/|tests/)?\w+\.py|-m transformer[\w.]*)"
    r"((?:(?: +|\s*\\\n *|\n +(?=--))(?:[^\s`|&\\'\"]|'[^'\n]*'|\"[^\"\n]*\")+)*)"
)
# Of each page its scripts with their words; test_doors.py runs those of the pages add-a-....
COMMANDS = {
    page: [
        (script, shlex.split(words.replace("\\\n", " ")))
        for script, words in COMMAND.findall(page.read_text())
        if not page.name.startswith("add-a")
    ]
    for page in PAGES
}
# Fields of earlier commits, which docs/experiments.md names, and the one of add-an-option.md.
NOT_FIELDS = {
    "model.residual_scale",
    *("data.extra_source", "data.extra_target", "data.both_directions"),
    *("training.r_drop", "training.bleu_every"),
    *("optimizer.learning_rate_scale", "optimizer.cooldown_start"),
}
# Names in the pages that are not of this code.
FOREIGN = {
    *("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN"),
    *("ConditionalDecoder", "BertForPreTraining", "MarianMTModel", "ctx2hid", "WANDB_MODE"),
    *("fconv_iwslt_de_en", "fconv_wmt_en_de", "transformer_parsing_base", "XDG_STATE_HOME"),
    *("mpirun", "mpi4py", "srun", "scontrol", "taskset", "flores200", "fashion_mnist"),
    *("wmt14_full", "tasksv11", "mclosky", "zh_Hans", "zho_Hans", "cmn", "yue", "deu", "ger"),
    *("articles", "books", "wheels", "residual_scale", "true", "XLA_FLAGS"),
    *("podFailurePolicy", "terminationGracePeriodSeconds", "completions", "parallelism"),
    *("deu_Latn", "zho_Hant", "yue_Hant", "M2M100Tokenizer", "NllbTokenizer"),
    *("JOB_COMPLETION_INDEX", "ranking"),  # the last is defined by its page, add-a-task.md
}
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7}\b")
# Parts that the code puts together: rouge1_unstemmed, lead3_rouge1, bleu_..._lowercase.
AFFIXES = r"lead3_|lines_|_unstemmed|_best|_lowercase"


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
each_page_or_record = pytest.mark.parametrize("page", PAGES + RECORDS, ids=lambda page: page.name)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def defined(path: Path) -> set[str]:
    """What a module defines at its top, and Class.member for the members of its classes."""
    found = set()
    for node in tree(path).body:
        found |= _targets(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for part in node.body for name in _targets(part)}
    return found


def _targets(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {n.id for target in targets if target for n in ast.walk(target) if hasattr(n, "id")}


@functools.cache
def vocabulary() -> set[str]:
    """All names in the code, its strings as a whole, and the names of files and folders."""
    found = {path.stem for path in CODE} | {path.parent.name for path in CODE}
    for path in CODE:
        for node in ast.walk(tree(path)) if "tests" not in path.parts else []:
            found |= {value for value in vars(node).values() if isinstance(value, str)}
    recipes = tomllib.loads((ROOT / "transformer/reports/recipes.toml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found | recipes["recipe"].keys() | project["optional-dependencies"].keys() | FOREIGN


@functools.cache
def imported(path: Path) -> list[Path]:
    """Our modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return [found for name in names if (found := file_of(f"-m {name}")).is_file()]


@functools.cache
def flags_in(path: Path) -> set[str]:
    """The flags that a file defines; --noname for those that are true or false, too."""
    flags = set()
    for call in ast.walk(tree(path)):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            texts = [a.value for a in call.args if isinstance(getattr(a, "value", None), str)]
            if re.match("_?DEFINE|add_argument", name) and texts:
                flag = texts[0].removeprefix("--")
                flags |= {flag, f"no{flag}"} if name.startswith("DEFINE_bool") else {flag}
    return flags


@functools.cache
def flags_of(script: Path) -> set[str]:
    """The flags that a script and the modules that it imports define."""
    found, waiting = {script}, [script]
    while waiting:
        new = set(imported(waiting.pop())) - found
        found |= new
        waiting += new
    if ROOT / "transformer" / "__main__.py" in found:  # which imports commands by their names
        found |= {path for path in CODE if "transformer" in path.parts}
    of_search = {field.name for field in dataclasses.fields(DecodingConfig)}
    return {"config", "help"}.union(of_search, *map(flags_in, found))


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


SCRIPTS = {file_of(script) for found in COMMANDS.values() for script, _ in found}


def test_there_are_commands():
    assert sum(map(len, COMMANDS.values())) > 60


def test_first_blocks_of_the_readme():
    """CI pastes them by number: .ci/run."""
    first, second, third = blocks(ROOT / "README.md", "bash")
    assert first.endswith("&& python train.py && python evaluate.py --workdir=runs/demo\n")
    assert second.endswith("| python translate.py --workdir=runs/demo\n")
    assert third.endswith("&& python -m pytest\n")


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
@each_page
def test_flags_are_known(page, monkeypatch):
    for script, words in COMMANDS[page]:
        given = [word for word in words if word.startswith("--") and word != "--"]
        assert {_flag(word) for word in given} <= flags_of(file_of(script)), (script, words)

        fields = [word for word in given if word.startswith("--config.")]
        files = [word for word in words if re.fullmatch(r"(--config=)?configs/\w+\.py", word)]
        if files or fields:
            file = files[0].removeprefix("--config=") if files else "configs/demo.py"
            values = [re.sub(r"=.*", _a_value, field) for field in fields]
            _, others = config_of([script, f"--config={file}", *values], monkeypatch)
            assert not others


def _flag(word: str) -> str:
    """--beam_size=4 without its dashes and its value."""
    return re.match(r"--([\w-]*)", word)[1]


def _a_value(match: re.Match) -> str:
    """What stands for something of the reader's, such as $SCRATCH/data."""
    return match[0].replace("$", "")


@each_page
def test_blocks_can_be_parsed(page):
    script = "\n".join(blocks(page, "bash|sh"))
    subprocess.run([shutil.which("bash"), "-n"], input=script, text=True, check=True)
    for text in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(text), dict)


@each_page_or_record
def test_links_lead_somewhere_and_commits_are_in_tables(page):
    """Running text is for readers; the last table of a page says where figures are from."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not re.match("https?:", link) and (
            not target.exists() or (anchor and anchor not in anchors(target))
        ):
            broken.append(link)
    assert not broken
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    prose = [line for line in text.split("\n") if not re.match(r"\||- SHA-256 of", line)]
    assert not [line for line in prose if COMMIT.search(line)]


@each_page
def test_what_is_named_is_in_the_code(page):
    assert not [name for name in names(page) if not is_known(name)]
    sections = "task|data|tokenizer|model|optimizer|training|decoding|mesh"
    for text in names(page):
        for field in re.findall(rf"(?:^|--config\.)((?:{sections})\.\w+)(?==|$| )", text):
            if field not in NOT_FIELDS:
                type_of_field(field)


def test_what_the_code_does_not_have_is_found():
    gone = ["models/losses.py", "models/loss.py:loss_output", "losses.py", "Loss.sum"]
    gone += ["transformer.system.mistakes", "transformer.system.errors.UserMistake", "d_modl"]
    gone += ["translate.py --beams", "--nbests=4", "MultiHeadedAttention", "transformer-trian"]
    assert not [name for name in gone if is_known(name)]


def is_known(text: str) -> bool:
    """Of what stands in backticks: whether the files, names and flags in it exist."""
    if match := re.fullmatch(r"([\w./-]+\.(?:py|md|toml))(?::([\w.]+))?", text):
        paths = [path for path in CODE if path.name == text]  # without its folder
        paths += [root / match[1].lstrip("/") for root in (ROOT, ROOT / "transformer")]
        paths = [path for path in paths if path.exists()]
        return bool(paths) and (not match[2] or match[2] in defined(paths[0]))
    if re.fullmatch(r"(transformer|jax)(\.\w+)+", text):
        with contextlib.suppress(ImportError, AttributeError):
            return bool(pkgutil.resolve_name(text))
        return False
    if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.[a-z]\w*", text):  # Class.member
        return any(text in defined(path) for path in CODE)
    if match := re.match(r"(?:python )?(\w+\.py) (.*)", text):
        given = {_flag(word) for word in match[2].split() if word.startswith("--")}
        return all(any(given <= flags_of(p) for p in CODE if p.name == match[1]) for _ in given)
    if re.fullmatch(r"--[\w-]+([.=].*)?", text):
        return any(_flag(text) in flags_of(path) for path in SCRIPTS)
    if match := re.match(r"(?:python -m )?transformer[ -](\w[\w-]*)(.*)", text):
        command = ROOT / "transformer" / "commands" / f"{match[1].replace('-', '_')}.py"
        given = {_flag(word) for word in match[2].split() if word.startswith("--")}
        return command.exists() and given <= flags_of(command)
    if match := re.fullmatch(r"([A-Za-z_]\w+)(?:=\S*)?", text):
        plain = re.sub(AFFIXES, "", match[1])
        return bool({match[1], plain, text} & vocabulary())
    return True


def test_the_index_has_every_page():
    linked = re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs/README.md").read_text())
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert {*linked, "README.md"} == set(pages)


def test_the_readme_is_short_and_its_results_are_on_their_pages():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    results = re.findall(r"\| \[([\d.]+)[^|]*\]\((\S+)\) \|$", text, re.M)
    assert len(results) == 5
    for figure, page in results:
        digits = len(figure.partition(".")[2])
        found = re.findall(r"\d+\.\d+", (ROOT / page).read_text())
        assert figure in {f"{float(one):.{digits}f}" for one in found}, page


def test_what_is_said_of_versions_agrees():
    """Of the project: pyproject.toml, CITATION.cff, CHANGELOG.md and transformer --version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    heading = r"^## ([\d.]+) \((\S+)\)$"
    latest, date = re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.M).groups()
    assert project["version"] == citation["version"] == latest
    assert str(citation["date-released"]) == date
    command = [sys.executable, "-m", "transformer", "--version"]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == f"{latest}\n"


def test_the_version_of_an_installed_package_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", "9.7.3 of {}".format)
    assert commands.version() == "9.7.3 of transformer"


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
