"""Writes RESULTS.md and its pictures from the files of the ledger.

    python -m transformer results

It is for the repository, in which results/ is. docs/results.md says how results get there.
"""


def main() -> None:
    from transformer.reports import results_page

    results_page.write()
