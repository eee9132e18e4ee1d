"""What a person calls a setting stands in reports, and one mapping holds one part."""

from __future__ import annotations

from typing import Any

import pytest

from leakgauge.errors import InputError
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve, resolve_defense


def test_a_setting_is_called_what_its_label_says() -> None:
    client = {"local-training": {"optimiser": {"adam": {"lr": 0.001}}, "epochs": 2}, "label": "two epochs of Adam"}
    found, plain = (
        resolve(CLIENTS, client, "c"),
        resolve(CLIENTS, {k: v for k, v in client.items() if k != "label"}, "c"),
    )
    assert found.label == "two epochs of Adam"
    assert (found.value, found.names) == (plain.value, plain.names)
    parts = [{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.1}}]
    both = resolve_defense({"all": parts, "label": "clip and noise"}, "d")
    assert (both.label, both.name, both.value) == ("clip and noise", "clip + noise", resolve_defense(parts, "d").value)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"clip": {"norm": 1.0}, "noise": {"sigma": 0.1}}, "write a list: [{clip: …}, {noise: …}]"),
        ({"clip": {"norm": 1.0}, "noise": {"sigma": 0.1}, "label": "both"}, "label one thing"),
        ({"clip": {"norm": 1.0}, "label": 3}, "give a few words"),
    ],
)
def test_two_parts_in_one_mapping_are_told_apart(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_defense(wrong, "defenses[0]")
    assert hint in str(caught.value)
