"""Each notebook runs from top to bottom as it is, and its exercises can be solved."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXERCISES = ("exercise-1", "exercise-2", "exercise-3")


def tagged(notebook, tag):
    """The code cell with a tag; there must be one."""
    (cell,) = (c for c in notebook.cells if tag in c.metadata.get("tags", ()))
    assert cell.cell_type == "code"
    return cell


def printed(cell):
    return "".join(x.text for x in cell.outputs if x.output_type == "stream" and x.name == "stdout")


def solutions(name):
    text = (ROOT / "tests/notebooks/solutions" / f"{name}.py").read_text()
    _, *parts = re.split(r"^# (exercise-\d)$", text, flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_kept_without_outputs_and_has_three_exercises(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert tuple(solutions(path.stem)) == EXERCISES
    for exercise in EXERCISES:
        task = notebook.cells.index(tagged(notebook, exercise))
        check = notebook.cells.index(tagged(notebook, exercise.replace("exercise", "check")))
        assert check > task
        assert notebook.cells[task - 1].cell_type == "markdown"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_its_solutions_are_right(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    # Jupyter starts a kernel in the notebook's folder; here it must not write there.
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=900, resources=resources)
    with client.setup_kernel():
        for i, cell in enumerate(notebook.cells):
            client.execute_cell(cell, i)
        for exercise, solution in solutions(path.stem).items():
            check = tagged(notebook, exercise.replace("exercise", "check"))
            assert printed(check).startswith("not yet"), exercise
            answer = tagged(notebook, exercise)
            answer.source = solution
            for cell in (answer, check):
                client.execute_cell(cell, notebook.cells.index(cell))
            assert printed(check).startswith("right"), exercise
