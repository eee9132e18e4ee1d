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
def schemas() -> dict[str, Any]:
    asked = {kind: CliRunner().invoke(main, ["schema", kind]) for kind in ("plan", "report")}
    assert all(said.exit_code == 0 for said in asked.values())
    return {kind: json.loads(said.output) for kind, said in asked.items()}


def test_it_is_the_plan_s_where_nobody_asks_for_another(schemas: dict[str, Any]) -> None:
    assert json.loads(CliRunner().invoke(main, ["schema"]).output) == schemas["plan"]


def test_plans_of_the_pages_and_the_examples_hold(schemas: dict[str, Any]) -> None:
    for one in schemas.values():
        jsonschema.Draft202012Validator.check_schema(one)
    jsonschema.validate(yaml.safe_load(example_text()), schemas["plan"])
    seen = 0
    for page in PAGES:
        for block in blocks(page, "yaml"):
            plan = yaml.safe_load(block.text)
            if isinstance(plan, dict) and "attacks" in plan and "model" in plan:
                jsonschema.validate(plan, schemas["plan"])
                seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    "plan", [{"attaks": ["auto"]}, {"attacks": ["auot"]}, {"defenses": ["nois"]}, {"server": "honst"}, {"seeds": []}]
)
def test_a_mistake_does_not(plan: dict[str, Any], schemas: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plan, schemas["plan"])


def test_names_of_ones_own_and_compositions_do(schemas: dict[str, Any]) -> None:
    both = [{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.1}}]
    jsonschema.validate(
        {"model": "app:Net", "attacks": ["my.attack:mine"], "defenses": ["none", both]}, schemas["plan"]
    )
