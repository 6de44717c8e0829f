"""The scripts as commands of the installed package: transformer-train is train.py, and so on."""

import functools
import runpy
import sys

from transformer.runs.provenance import ROOT


def _run(script: str) -> None:
    sys.argv[0] = str(ROOT / script)
    runpy.run_path(sys.argv[0], run_name="__main__")


train = functools.partial(_run, "train.py")
evaluate = functools.partial(_run, "evaluate.py")
translate = functools.partial(_run, "translate.py")
classify = functools.partial(_run, "classify.py")
sweep = functools.partial(_run, "sweep.py")
complete = functools.partial(_run, "complete.py")
extract = functools.partial(_run, "extract.py")
generate = functools.partial(_run, "generate.py")
