"""The Universal Transformer (Dehghani et al. 2019)."""

from transformer.models.universal.universal import FAMILY as FAMILY
