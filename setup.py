"""The packages to install with this one; pyproject.toml has the rest.

Only the requirements files name packages. Their first lines (-r, -c) are for pip.
"""

from pathlib import Path

from setuptools import setup


def packages(name: str) -> list[str]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    found = [line.partition("#")[0].strip() for line in lines]
    return [line for line in found if line and not line.startswith("-")]


extras = {
    name: packages(f"requirements-{name}.txt")
    for name in ("bert", "bert-test", "benchmarks", "exports", "summarization", "test", "tracking")
}
extras["test"] += extras["bert"]
extras["bert-test"] += extras["test"]
setup(
    install_requires=packages("requirements.txt"),
    extras_require={
        **extras,
        "gpu": ["jax[cuda13]"],
        "gpu12": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
    },
)
