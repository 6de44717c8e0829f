"""BERT (Devlin et al. 2019)."""

from transformer.models.bert.bert import FAMILY as FAMILY
