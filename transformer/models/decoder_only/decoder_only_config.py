"""The config of a decoder-only Transformer (decoder_only.py)."""

import dataclasses

from transformer.models.layers import MOST_LAYERS, NORMS, LayerConfig
from transformer.system.errors import UserError, check_choice, check_range, setting

LETTERS = "FLM"  # of layers: see long_attention.py
FORMS = ("paper", "tensor2tensor")


@dataclasses.dataclass(frozen=True)
class DecoderOnlyConfig(LayerConfig):
    """See configs/t_dmca.py."""

    layers: str
    share_embeddings: str
    scale_embeddings: bool
    loss_over: str = setting(architecture=False)
    block_length: int
    local_attention: str
    compression: int
    compressed_attention: str
    expert_layer: int
    num_experts: int
    experts_per_token: int
    expert_d_ff: int
    balance_weight: float = setting(architecture=False)
    scale_outputs: bool = False  # work directories of earlier commits lack it

    position_kinds = tuple(kind for kind in LayerConfig.position_kinds if kind != "learned")

    def __post_init__(self):
        super().__post_init__()
        if not self.layers or set(self.layers) - set(LETTERS):
            raise UserError(
                f"model.layers is {self.layers!r}; give a letter for each layer: F (full), L "
                "(local) or M (memory-compressed), as in LMLML"
            )
        if len(self.layers) > MOST_LAYERS:
            raise UserError(
                f"model.layers has {len(self.layers):,} letters; give at most {MOST_LAYERS:,}"
            )
        check_choice(self, "model", "share_embeddings", ("all", "none"))
        check_choice(self, "model", "loss_over", ("all", "target"))
        check_choice(self, "model", "local_attention", FORMS)
        check_choice(self, "model", "compressed_attention", FORMS)
        check_range(self, "model", "block_length", 1)
        check_range(self, "model", "compression", 2)
        check_range(self, "model", "expert_layer", 0, len(self.layers) + 1)
        check_range(self, "model", "num_experts expert_d_ff", 1)
        check_range(self, "model", "experts_per_token", 1, self.num_experts + 1)
        check_range(self, "model", "balance_weight", 0)
        of_2017 = {"positions": ("sinusoidal", "none"), "logit_soft_cap": (0,)}
        of_2017["num_key_value_heads"] = 0, self.num_heads
        if not set(self.layers) <= {"F"}:
            self.check_without(of_2017, f"layers L and M of model.layers={self.layers}")
        if self.expert_layer:
            plain = {"feed_forward": ("plain",), "feed_forward_bias": (True,)}
            plain["norm"] = tuple(norm for norm in NORMS if norm != "deepnorm")
            self.check_without(plain, f"the experts of model.expert_layer={self.expert_layer}")

    @property
    def depths(self) -> tuple[int, int]:
        return 0, len(self.layers)
