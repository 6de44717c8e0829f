"""Both networks: sizes, numbers of parameters, losses, and what the attention adds."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sagan_128, sagan_cifar10_full
from transformer.models.family import Sizes, build_model
from transformer.models.functional import num_params
from transformer.models.sagan.sagan import (
    SAGANConfig,
    multiplications,
)
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding
from transformer.training.adversarial import discriminator_loss, generator_loss

TINY = SAGANConfig("sagan", 32, 3, 5, 16, 8, "paper", 16, "float32")


def model_of(config: SAGANConfig, classes: int = 3):
    return build_model(config, Sizes(classes, classes, False, 1, 1))


def test_golden_losses():
    assert discriminator_loss(jnp.zeros(3), jnp.zeros(3)) == 2
    assert discriminator_loss(jnp.array([2.0, 0.5]), jnp.array([-3.0, 1.0])) == 0.25 + 1
    assert generator_loss(jnp.array([2.0, -0.5])) == -0.75


def by_hand(generator, discriminator, image, classes, attention):
    """Parameters, from the widths at 4 x 4 and after each block; attention: C^2 + gamma."""
    conv = lambda size, i, o: size * size * i * o + o  # noqa: E731
    total = [128 * 16 * generator[0] + 16 * generator[0], 0]
    for i, o in itertools.pairwise(generator):
        total[0] += conv(3, i, o) + conv(3, o, o) + conv(1, i, o) + 2 * classes * (i + o)
    total[0] += 2 * generator[-1] + conv(3, generator[-1], 3)
    for i, (o, halves) in zip([3, *(o for o, _ in discriminator)], discriminator):
        total[1] += conv(3, i, o) + conv(3, o, o) + (conv(1, i, o) if halves or i != o else 0)
    total[1] += (1 + classes) * discriminator[-1][0] + 1
    return [x + a for x, a in zip(total, attention)]


def test_parameters_of_32_pixels():
    """The sizes of Miyato et al. 2018, with the released attention: 1.25 C^2 + 1."""
    config = SAGANConfig(**sagan_cifar10_full.get_config().model.to_dict())
    found = model_of(config, 10).abstract_params()
    halved = [(128, True), (128, True), (128, False), (128, False)]
    attention = 1.25 * 256**2 + 1, 1.25 * 128**2 + 1
    expected = by_hand([256] * 4, halved, 32, 10, attention)
    assert [num_params(found[name]) for name in ("generator", "discriminator")] == expected
    assert expected == [4_386_308, 1_075_586]


def test_parameters_of_128_pixels():
    """The paper's attention: C^2 / 2 + 1, at 32 x 32 in both."""
    config = SAGANConfig(**sagan_128.get_config().model.to_dict())
    found = model_of(config, 1000).abstract_params()
    halved = [(64, True), (128, True), (256, True), (512, True), (1024, True), (1024, False)]
    widths = [1024, 1024, 512, 256, 128, 64]
    attention = 256**2 / 2 + 1, 128**2 / 2 + 1
    expected = by_hand(widths, halved, 128, 1000, attention)
    assert [num_params(found[name]) for name in ("generator", "discriminator")] == expected


def forward(config, params, extra, update=True):
    model = model_of(config)
    bound = model.bind(params, extra)
    noise, labels = jax.random.normal(jax.random.key(3), (2, 5)), jnp.array([0, 2])
    images = bound.generator(noise, labels, 0.9, update)
    return images, bound.discriminator(images, labels, update), model.extra_of(bound)


@pytest.fixture(scope="module")
def passed(random_params):
    """Drawn by NumPy: compiling the initialisers takes long."""
    model = model_of(TINY)
    params = random_params(model)
    for network in params.values():
        network["attention"]["gamma"] = jnp.zeros(())
    extra = jax.tree.map(lambda x: jnp.full(x.shape, x.size**-0.5), model.abstract_extra())
    extra["average"] = params["generator"]
    return params, extra, jax.jit(lambda p, e: forward(TINY, p, e))(params, extra)


@pytest.mark.slow
def test_with_gamma_0_it_is_the_network_without_attention(passed):
    params, extra, (images, logits, _) = passed
    assert images.shape == (2, 32, 32, 3)
    assert np.abs(images).max() < 1

    def without(tree):
        return {
            name: {k: x for k, x in part.items() if k != "attention"} for name, part in tree.items()
        }

    config = dataclasses.replace(TINY, attention="none")
    params = without(params)
    extra = without(extra)
    found = jax.jit(lambda p, e: forward(config, p, e))(params, extra)
    np.testing.assert_allclose(found[0], images, atol=1e-6)
    np.testing.assert_allclose(found[1], logits, rtol=1e-5)


@pytest.mark.slow
def test_vectors_and_statistics_move_where_they_should(passed):
    _, extra, (_, _, after) = passed
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), extra, after)
    flat = {jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_leaves_with_path(moved)}
    assert not any(x for name, x in flat.items() if name.startswith("['average']"))
    # A vector of one number cannot turn.
    sizes = {jax.tree_util.keystr(k): x.size for k, x in jax.tree_util.tree_leaves_with_path(after)}
    still = [n for n, x in flat.items() if not x and not n.startswith("['average']")]
    assert all(sizes[name] == 1 for name in still), still


@pytest.mark.parametrize("form", ["paper", "released"])
def test_products_are_those_xla_counts(form):
    """A forward pass; the rest are sums, normalisation and the like, of a few per cent."""
    config = dataclasses.replace(
        TINY, attention=form, generator_width=64, discriminator_width=64, noise_size=128
    )
    model = model_of(config)
    shapes = model.abstract_params(), model.abstract_extra()
    # Each parameter has one row of the sharding table.
    shardings = state_sharding(data_mesh(jax.devices()[:1]), shapes[0], model.sharding)
    assert shardings["generator"]["blocks"][0]["conv1"]["kernel"].spec[3] == "fsdp"
    noise = jax.ShapeDtypeStruct((2, 128), jnp.float32)
    labels = jax.ShapeDtypeStruct((2,), jnp.int32)
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    calls = [
        (lambda p, e, z, y: model.bind(p, e).generator(z, y), noise),
        (lambda p, e, x, y: model.bind(p, e).discriminator(x, y), images),
    ]
    for ours, (call, given) in zip(multiplications(config), calls, strict=True):
        counted = jax.jit(call).lower(*shapes, given, labels).cost_analysis()["flops"]
        # XLA leaves out what meets the zeros around an image.
        assert 0.9 * 4 * ours < counted < 1.2 * 4 * ours


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 64}, "model.image_size is 64; it must be one of: 32, 128"),
        ({"attention_size": 32}, "model.attention_size is 32; it must be one of: 16, 8"),
        ({"attention": "dot"}, "it must be one of: none, paper, released"),
        ({"generator_width": 12}, "model.generator_width is 12, which gives the attention 12"),
        ({"channels": 2}, "model.channels is 2"),
    ],
)
def test_a_config_that_cannot_be(changes, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(TINY, **changes)
    assert message in str(error.value).replace("'", "")
