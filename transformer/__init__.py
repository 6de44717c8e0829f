"""The Transformer of "Attention Is All You Need" (arXiv 1706.03762) and its relatives, in JAX.

Letters. An array's name ends in its shape, and einsum strings use the same letters:

    B  batch (rows)          D  d_model              N  hypotheses: B * M
    S  source length         H  heads                M  beam size
    T  target length         K  query and key size   V  vocabulary size
    F  d_ff                     of a head            L  longest output of a search
    A  accumulation steps    U  value size of a head

Masks are boolean, True where a query may attend. Segment ids number the sentences packed
into one row 1, 2, ...; 0 is padding.

Each folder of the package is a room. A room imports only from the rooms above it in this list;
tests/test_rooms.py checks that. Its docstring says what it holds.

    system      what any JAX program needs: files, processes, devices
    configs     presets: a config file for each kind of run
    data        text -> token ids -> packed batches                   Section 5.1
    models      layers, attention, losses; a file or folder per family  Section 3
    training    the update: step, optimizers, schedules               Sections 5.3, 5.4
    decoding    beam search, ensembles, translation                   Section 6.1
    metrics     scores of outputs
    tasks       what is learned from what
    runs        the life of a run: config, loop, checkpoints, logs
    inference   a trained model as a tool: lines in, lines out
    reports     what people read: ledger, results, curves, recipes
    exports     models for other programs
    commands    the commands of `transformer --help`: flags, and one call

Two interfaces hold it together. A Family (models/family.py) is a model; a Task (tasks/task.py) is
what is learned from what. `config.model.family` and `config.task.name` choose them.
docs/sentence-to-bleu.md says in which order to read the code.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from transformer.inference.model import Model


def load(workdir: "str | Path", **options: Any) -> "Model":
    """Loads the trained model of a work directory, for translating and scoring.

    options: `checkpoint` ("best", "last", "average", "ema" or a step), `average_last` and
      `ensemble` (more work directories), as the flags of translate; `long_lines` and `max_tokens`,
      see inference/model.py; and fields of the decoding section, such as `beam_size`.
    Raises UserError (transformer.system.errors) for options or files that cannot be used.

    >>> model = load("runs/demo", beam_size=3)
    >>> best, blank = model.translate(["one two", ""])
    >>> blank
    ''
    >>> first, second = model.search(["one two"], nbest=2)[0]
    >>> first.text == best, first.score >= second.score
    (True, True)
    >>> (scored,) = model.score([("one two", best)])
    >>> len(scored.tokens) == len(scored.token_log_probs)
    True
    """
    from transformer.inference import model

    return model.load(workdir, **options)
