"""A set of hashes that takes little memory, for finding duplicates."""

import numpy as np


class DistinctHashes:
    """Hashes of 8 bytes in sorted arrays, each more than twice as long as the next."""

    def __init__(self):
        self._arrays: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Adds hashes; True for those that were not in the set, nor earlier among these."""
        new, places = np.unique(hashes, return_index=True)
        for known in self._arrays:
            found = np.minimum(np.searchsorted(known, new), len(known) - 1)
            is_new = known[found] != new
            new, places = new[is_new], places[is_new]
        if len(new):
            self._arrays.append(new)
        while len(self._arrays) > 1 and len(self._arrays[-2]) <= 2 * len(self._arrays[-1]):
            both = np.concatenate([self._arrays.pop(), self._arrays.pop()])
            both.sort(kind="stable")  # which merges
            self._arrays.append(both)
        is_first = np.zeros(len(hashes), bool)
        is_first[places] = True
        return is_first
