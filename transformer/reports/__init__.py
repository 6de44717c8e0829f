"""What people read of runs.

The ledger of results and its page, learning curves, reports on runs, pictures of attention, the
walk-through, and how a run differs from a published recipe.
Nothing here trains a model.
"""

import logging

# It tells of its cache of fonts and of folders that it cannot write, already when it is imported.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
