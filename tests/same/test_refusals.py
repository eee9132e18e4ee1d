"""Attacks that cannot take the data say so, whatever they are called for; none raises."""

from __future__ import annotations

import pytest

from hunt.scenarios import Scenario, recipes
from hunt.zoo import Net


@pytest.mark.parametrize("family", ["texts", "patches"])
@pytest.mark.parametrize("name", recipes())
def test_no_attack_raises(name: str, family: str) -> None:
    found = Scenario(Net(family), using=name, evaluations=4).result()
    assert not isinstance(found, str)
    assert found.status.has_result or found.message
