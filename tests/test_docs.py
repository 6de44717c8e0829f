"""The commands in README.md and docs/: their scripts exist, their flags are known."""

import re
import shutil
import subprocess

import pytest
import yaml
from small_configs import config_of

from transformer.runs.provenance import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A script and the words after it, also on lines that go on after a backslash or, in YAML, with
# another flag.
COMMAND = re.compile(
    r"\bpython3? ((?:benchmarks/|tests/)?\w+\.py)((?:(?: +|\s*\\\n *|\n +(?=--))[^\s`|&\\']+)*)"
)
COMMANDS = [
    pytest.param(script, words.replace("\\\n", " ").split(), id=f"{page.name}-{script}-{number}")
    for page in PAGES
    for number, (script, words) in enumerate(COMMAND.findall(page.read_text()))
]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
        found += [pytest.param(text, id=f"{page.name}-{n}") for n, text in enumerate(texts)]
    return found


def test_there_are_commands():
    assert {page.name for page in PAGES} <= {param.id.partition("-")[0] for param in COMMANDS} | {
        "fidelity.md"
    }
    assert len(COMMANDS) > 25


@pytest.mark.filterwarnings("ignore:the load_module")  # of config_flags
@pytest.mark.parametrize(("script", "words"), COMMANDS)
def test_flags_are_known(script, words, monkeypatch):
    sources = [ROOT / script, *(ROOT / "transformer").glob("*.py")]
    defined = "|".join(path.read_text() for path in sources)
    known = set(re.findall(r"(?:DEFINE_\w+|add_argument)\(\s*\"(?:--)?(\w+)\"", defined))
    given = [word for word in words if word.startswith("--") and word != "--"]
    assert not [w for w in given if re.match(r"--(\w+)", w)[1] not in known | {"config"}]

    fields = [word for word in given if word.startswith("--config.")]
    files = [word for word in words if re.fullmatch(r"(--config=)?configs/\w+\.py", word)]
    file = files[0].removeprefix("--config=") if files else "configs/demo.py"
    values = [re.sub(r"=.*", _a_value, field) for field in fields]
    _, others = config_of([script, f"--config={file}", *values], monkeypatch)
    assert not others


def _a_value(match: re.Match) -> str:
    """What stands for something of the reader's, such as "$SCRATCH/data, without the quote."""
    return match[0].replace('"', "").replace("$", "")


@pytest.mark.parametrize("script", blocks("bash"))
def test_bash_can_be_parsed(script):
    subprocess.run([shutil.which("bash"), "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_can_be_parsed(text):
    assert isinstance(yaml.safe_load(text), dict)
