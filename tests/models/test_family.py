import dataclasses

import pytest
from small_configs import MODEL, sizes_of

from transformer.models.family import FAMILIES, build_model, find_family
from transformer.models.functional import num_params
from transformer.system.errors import UserError


def test_families_by_name():
    for name in FAMILIES:
        family = find_family(name)
        fields = [field.name for field in dataclasses.fields(family.config)]
        assert fields[0] == "family"


@pytest.mark.parametrize(
    ("name", "hint"), [("transfomer", "did you mean 'transformer'? it must"), ("vae", "'vae'; it")]
)
def test_an_unknown_family(name, hint):
    with pytest.raises(UserError, match=r"^model\.family is .*must be one of: ") as error:
        find_family(name)
    assert hint in str(error.value)


def test_a_model_knows_its_sharding_table():
    model = build_model(MODEL, sizes_of(23))
    assert model.sharding == find_family("transformer").sharding
    assert num_params(model.abstract_params()) > 23 * MODEL.d_model
