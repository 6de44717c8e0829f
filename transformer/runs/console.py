"""The scripts as commands of an installed package: transformer-train is train.py, and so on."""

import runpy
import sys

from transformer.runs.provenance import ROOT


def train() -> None:
    _run("train.py")


def evaluate() -> None:
    _run("evaluate.py")


def translate() -> None:
    _run("translate.py")


def classify() -> None:
    _run("classify.py")


def sweep() -> None:
    _run("sweep.py")


def complete() -> None:
    _run("complete.py")


def extract() -> None:
    _run("extract.py")


def generate() -> None:
    _run("generate.py")


def _run(script: str) -> None:
    sys.argv[0] = str(ROOT / script)
    runpy.run_path(sys.argv[0], run_name="__main__")
