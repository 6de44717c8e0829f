import dataclasses
import inspect

import pytest
from small_configs import MODEL, sizes_of

from transformer.models.family import FAMILIES, ModelSection, build_model, find_family
from transformer.models.functional import num_params
from transformer.system.errors import UserError


def test_families_by_name():
    for name in FAMILIES:
        family = find_family(name)
        fields = [field.name for field in dataclasses.fields(family.config)]
        assert fields[0] == "family"
        assert issubclass(family.config, ModelSection)
        has_d_model = "d_model" in fields
        assert (family.config.width is not None) == has_d_model, "for Equation 3"


def test_answers_of_all_model_sections_are_no_defaults_of_fields():
    """A dataclass takes an attribute of its base as the default of a field of that name."""
    for section in {kind for name in FAMILIES for kind in find_family(name).config.__mro__}:
        for field in inspect.get_annotations(section).keys() & vars(ModelSection).keys():
            default = section.__dataclass_fields__[field].default
            assert field in vars(section) or default is dataclasses.MISSING, field


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
