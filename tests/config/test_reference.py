"""The pages of the configuration file are what the models say."""

from __future__ import annotations

from pathlib import Path

import pytest
from configuration_pages import reference
from pydantic import BaseModel

from headrace import config
from headrace.config.validation import fields_of

DOCS = Path(__file__).parents[2] / "docs"
MODELS = [each for each in vars(config).values() if isinstance(each, type) and issubclass(each, BaseModel)]


def test_the_pages_are_up_to_date():
    written = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("configuration*.md")}
    assert written == reference(), "run `make docs`"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_is_in_the_document_with_a_meaning(model: type[BaseModel]):
    rows = [line for page in reference().values() for line in page.splitlines() if line.startswith("| `")]
    for key, field in fields_of(model).items():
        assert field.description, f"{model.__name__}.{key} has no description"
        assert any(row.startswith(f"| `{key}` |") and row.endswith(f"| {field.description} |") for row in rows)
