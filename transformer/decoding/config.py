"""The decoding section of a config."""

import dataclasses
import math

from transformer.system.decimals import written
from transformer.system.errors import UserError, check_choice, check_range

# For a line of more tokens than are translated at once; see long_lines.py.
POLICIES = ("split", "cut", "refuse", "whole")
MOST_OUTPUTS = 10_000  # of one source, in one search; other seeds give other samples


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """See configs/base.py. Work directories of earlier commits lack the fields with defaults."""

    beam_size: int
    length_penalty: float
    max_extra_length: int
    length_penalty_form: str = "gnmt"
    coverage_penalty: float = 0.0
    max_length: int = 0
    max_length_ratio: float = 1.0
    min_length: int = 0
    min_length_ratio: float = 0.0
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    beam_groups: int = 1
    diversity: float = 0.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    brackets: bool = False
    int8: bool = False
    mbr: int = 0

    def __post_init__(self):
        from transformer.decoding.search import (
            LENGTH_PENALTIES,  # JAX: --help needs the fields only
        )

        check_range(self, "decoding", "beam_size beam_groups", 1, 1025)
        check_range(self, "decoding", "length_penalty coverage_penalty diversity temperature", 0)
        check_range(self, "decoding", "max_length_ratio min_length_ratio", 0, 1025)
        check_range(self, "decoding", "max_extra_length max_length min_length", 0)
        check_range(self, "decoding", "no_repeat_ngram top_k", 0)
        check_range(self, "decoding", "mbr", 0, 1025)
        check_range(self, "decoding", "repetition_penalty", 1, 1025)
        check_range(self, "decoding", "seed", 0, 2**32 - 1)
        check_choice(self, "decoding", "length_penalty_form", LENGTH_PENALTIES)
        if self.longest(1) < 1:
            raise UserError(
                "decoding.max_extra_length is 0 and decoding.max_length_ratio is less than 1; "
                "raise one of them, so that there is room for EOS"
            )
        if 0 < self.max_length < self.min_length:
            raise UserError(
                f"decoding.min_length = {self.min_length} is more than decoding.max_length = "
                f"{self.max_length}; lower it"
            )
        if self.beam_size % self.beam_groups:
            raise UserError(
                f"decoding.beam_size = {self.beam_size} is not divisible by decoding.beam_groups "
                f"= {self.beam_groups}; change one of them"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(
                f"decoding.top_p is {self.top_p}; it must be in (0, 1], and 1 leaves nothing out"
            )
        if 0 < self.temperature < 1e-3:  # logits divided by less may exceed float32
            raise UserError(
                f"decoding.temperature is {self.temperature}; it must be at least 0.001, or 0 for "
                "no samples"
            )
        if self.temperature and self.beam_groups > 1:
            raise UserError(
                "decoding.temperature asks for samples and decoding.beam_groups for a beam; leave "
                "one of them out"
            )
        alone = [("top_k", self.top_k), ("top_p", self.top_p < 1), ("seed", self.seed)]
        for name, is_set in alone:
            if is_set and not self.temperature:
                raise UserError(
                    f"decoding.{name} is for samples; set decoding.temperature, too (1: the "
                    "model's own probabilities)"
                )
        if self.mbr > self.beam_size and not self.temperature:
            raise UserError(
                f"decoding.mbr asks for {self.mbr} candidates, and decoding.beam_size is "
                f"{self.beam_size}; raise it, or set decoding.temperature for samples (1: the "
                "model's own probabilities)"
            )
        if self.brackets and self.temperature:
            raise UserError(
                "decoding.brackets is for a search, and decoding.temperature asks for samples; "
                "leave one of them out"
            )
        if self.diversity and self.beam_groups == 1:
            raise UserError("decoding.diversity is between groups; set decoding.beam_groups, too")

    def longest(self, source_tokens: int) -> int:
        """The most tokens of an output, EOS included; the source is counted without its EOS."""
        limit = math.floor(source_tokens * written(self.max_length_ratio)) + self.max_extra_length
        return min(limit, self.max_length or limit)

    def shortest(self, source_tokens: int) -> int:
        """The fewest tokens of an output; counts as for `longest`."""
        limit = max(self.min_length, math.ceil(source_tokens * written(self.min_length_ratio)))
        return min(limit, self.longest(source_tokens))
