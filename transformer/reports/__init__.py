"""Reports on runs, for people to read.

The ledger of results, learning curves, reports on runs, pictures of attention, and how a run
differs from a published recipe.
Nothing here trains a model.
"""

import logging

# Matplotlib logs its font cache and unwritable folders as early as at import.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
