"""Attention masks: who may attend to whom."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Mask(NamedTuple):
    """Who may attend to whom, in memory linear in the length; `dense` makes the array [B, T, S].

    A query attends to keys of its own segment and to no padding (id 0). With one sentence a
    row, this is the padding mask. Either array may have size 1 in place of B, and
    `query_segments_BT` in place of T.

    With the queries' positions among the keys (0, 1, ...), no query attends to later ones
    (Section 3.2.3). In training they are 0 to T - 1; a query that is decoded has its step.
    A key need not stand at its position: `key_positions_BS` says from which query on it is seen.
    """

    query_segments_BT: jax.Array
    key_segments_BS: jax.Array
    query_positions_T: jax.Array | None = None
    key_positions_BS: jax.Array | None = None

    def dense(self) -> jax.Array:
        """Boolean [B, T, S], True where a query may attend to a key; sizes of 1 stay."""
        key_B1S = self.key_segments_BS[:, None, :]
        mask_BTS = (self.query_segments_BT[:, :, None] == key_B1S) & (key_B1S > 0)
        if self.query_positions_T is not None:
            position_B1S = jnp.arange(self.key_segments_BS.shape[1])[None, None, :]
            if self.key_positions_BS is not None:
                position_B1S = self.key_positions_BS[:, None, :]
            mask_BTS &= position_B1S <= self.query_positions_T[None, :, None]
        return mask_BTS
