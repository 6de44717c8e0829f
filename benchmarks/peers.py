"""The configs for which there is the same model in PyTorch."""

import importlib
from typing import NamedTuple

from transformer.runs.run_config import Config
from transformer.system.errors import UserError


class Peer(NamedTuple):
    """What PyTorch's model of a family can be: that of a config, but for some fields."""

    config: str  # a module of configs/
    free: set[str] | None = None  # fields of the model that may differ; None: it checks by itself
    others: tuple[str, ...] = ()  # further fields that may not


_LAYERS = {"d_model", "d_ff", "num_heads", "dropout", "attention_dropout", "activation_dropout"}
_LAYERS |= {"activation", "dtype", "norm_epsilon"}
PEERS = {
    "transformer": Peer(
        "base", _LAYERS | {"num_encoder_layers", "num_decoder_layers", "max_positions"}
    ),
    "universal": Peer("universal_base", _LAYERS | {"encoder_steps", "decoder_steps"}),
    "rnn": Peer("rnn_bahdanau"),
    "convolutional": Peer("convs2s_iwslt"),
    "bert": Peer("bert_base", _LAYERS | {"num_layers", "max_positions"}, ("task.name",)),
    "sagan": Peer("sagan_cifar10", None, ("task.discriminator_steps", "model.dtype")),
}
FREE_OPTIMIZER = {
    *("beta1", "beta2", "epsilon", "schedule", "peak_learning_rate", "warmup_steps"),
    *("max_grad_norm", "decay_steps"),
}


def check(config: Config) -> None:
    """Raises UserError for what PyTorch is not compared with."""
    if config.model.family not in PEERS:
        raise UserError(
            f"there is no model in PyTorch for model.family={config.model.family!r}; there are: "
            f"{', '.join(PEERS)}"
        )
    peer = PEERS[config.model.family]
    reference = importlib.import_module(f"transformer.configs.{peer.config}").get_config()
    free = {"optimizer": FREE_OPTIMIZER}
    if peer.free is not None:
        free["model"] = peer.free
    fixed = [
        (section, field)
        for section, fields in free.items()
        for field in vars(getattr(config, section))
        if field not in fields
    ]
    for section, field in [*(name.split(".") for name in peer.others), *fixed]:
        if getattr(getattr(config, section), field) != reference[section][field]:
            raise UserError(
                "PyTorch's model is compared only with "
                f"{section}.{field}={reference[section][field]!r}"
            )
    if getattr(config.model, "activation", "relu") not in ("relu", "gelu", "gelu_exact"):
        raise UserError(f"PyTorch's layers have no model.activation={config.model.activation!r}")
