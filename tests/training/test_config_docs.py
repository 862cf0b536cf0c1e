"""docs/configuration.md is what the classes say, and every field has a reason."""

import pytest
from pydantic import BaseModel

from tests.config_docs import PAGE, page
from uedp.methods import method_named
from uedp.training.config import Config

SECTIONS = {name: field.annotation for name, field in Config.model_fields.items()}


def test_the_page_is_written_from_the_classes():
    assert PAGE.read_text() == page(), "run `python -m tests.config_docs` and commit the result"


@pytest.mark.parametrize("name", [*SECTIONS, "uedp-alg"])
def test_every_field_says_what_it_means_and_why_it_has_its_default(name):
    section = method_named(name).options_type if name == "uedp-alg" else SECTIONS[name]
    assert issubclass(section, BaseModel)
    for field, info in section.model_fields.items():
        assert info.description, field
        if not info.is_required():
            assert len(info.description.split()) >= 6, field
            assert f"| `{field}` |" in page()
