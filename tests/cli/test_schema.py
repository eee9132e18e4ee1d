"""Editors complete and check plans by a schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from docs.pages import blocks
from docs.test_pages import PAGES
from leakgauge.cli import main
from leakgauge.study.grammar import example_text


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    said = CliRunner().invoke(main, ["schema"])
    assert said.exit_code == 0
    return dict(json.loads(said.output))


def test_plans_of_the_pages_and_the_examples_hold(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(example_text()), schema)
    seen = 0
    for page in PAGES:
        for block in blocks(page, "yaml"):
            plan = yaml.safe_load(block.text)
            if isinstance(plan, dict) and "attacks" in plan and "model" in plan:
                jsonschema.validate(plan, schema)
                seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    "plan", [{"attaks": ["auto"]}, {"attacks": ["auot"]}, {"defenses": ["nois"]}, {"server": "honst"}, {"seeds": []}]
)
def test_a_mistake_does_not(plan: dict[str, Any], schema: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plan, schema)


def test_names_of_ones_own_and_compositions_do(schema: dict[str, Any]) -> None:
    both = [{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.1}}]
    jsonschema.validate({"model": "app:Net", "attacks": ["my.attack:mine"], "defenses": ["none", both]}, schema)
