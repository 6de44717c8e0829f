import numpy as np
import pytest

from transformer.data.labelled_images import ImageSet, Shape
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
def test_it_learns_to_tell_dark_from_light():
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (100 * labels[:, None, None, None] + rng.integers(0, 100, (40, 16, 16, 1))).astype(
        "u1"
    )
    found = ImageSet(images, labels, ["dark", "light"])
    told = []
    _, about = train_classifier(found, found, 20, 0, lambda *x: told.append(x))
    assert about.accuracy == 100
    assert [epoch for epoch, _ in told] == list(range(1, 21))
    assert (about.size, about.channels, about.held_out) == (16, 1, 40)
