import types

import numpy as np
import pytest

from configs import sagan_cifar10
from transformer.data.labelled_images import ImageData, Shape
from transformer.system.errors import UserError
from transformer.tasks.feature_classifier import (
    About,
    FeatureClassifier,
    model_of,
    train_classifier,
)

ABOUT = About(8, 1, ["a", "b"], 75.0, 4, "x", 1, 0)


def test_saved_and_loaded(tmp_path, random_params):
    path = tmp_path / "features.npz"
    params = random_params(model_of(1, 2))
    FeatureClassifier.save(path, params, ABOUT)
    loaded = FeatureClassifier.load(path)
    assert loaded.about == ABOUT
    assert loaded.words.startswith(
        f"features of our classifier {loaded.sha256[:12]} (accuracy 75.0"
    )
    images = np.random.default_rng(0).integers(0, 256, (103, 16, 16, 1), np.uint8)
    features = loaded.features(images)
    assert features.shape == (103, 128)
    np.testing.assert_allclose(loaded.features(images[100:]), features[100:], rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match=r"images of 8 x 8 .* makes 32 x 32 and 3; train"):
        loaded.check(Shape(32, 3), path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="is no classifier, or is damaged"):
        FeatureClassifier.load(path)
    with pytest.raises(UserError, match=r"cannot read .*; .* --help says how to train one"):
        FeatureClassifier.load(tmp_path / "none.npz")


@pytest.mark.slow
def test_it_learns_to_tell_dark_from_light(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = 100 * labels[:, None, None, None] + rng.integers(0, 100, (40, 16, 16, 1))
    np.savez(tmp_path / "images.npz", images=images.astype("u1"), labels=labels)
    config = sagan_cifar10.get_config()
    config.data.train_images = config.data.validation_images = str(tmp_path / "images.npz")
    config.model.image_size, config.model.channels = 16, 1
    _, about = train_classifier(types.SimpleNamespace(**parts_of(config)), 20, 0)
    assert about.accuracy == 100
    assert capsys.readouterr().out.count("epoch") == 20
    assert (about.size, about.channels, about.held_out) == (16, 1, 40)


def parts_of(config):
    """Sections of a Config of a size that the model does not have."""
    return {"data": ImageData(**config.data.to_dict()), "model": config.model}
