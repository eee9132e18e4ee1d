"""Which combinations of a plan its `only` rules keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakgauge.errors import did_you_mean, require
from leakgauge.resolve import Named
from leakgauge.study.grammar import OnlyRule

Parts = Mapping[str, Sequence[Named]]
"""``model``, ``client``, ``defense``, ``attack`` → the plan's list of them."""


def _short(label: str) -> str:
    return label.split("(")[0]


def check(rules: Sequence[OnlyRule], parts: Parts) -> None:
    """Raises `InputError` where a rule names what the plan does not have."""
    for i, rule in enumerate(rules):
        for key, named in parts.items():
            labels = {n.label for n in named} | {_short(n.label) for n in named}
            for name in rule.names(key) or []:
                require(name in labels, f"only[{i}].{key}", f"'{name}' is not in the plan", did_you_mean(name, labels))


def batches(rules: Sequence[OnlyRule] | None, chosen: Mapping[str, Named], most: int) -> int:
    """How many batches of one combination are kept; `most` where there are no rules."""
    if rules is None:
        return most

    def fits(rule: OnlyRule, key: str) -> bool:
        names = rule.names(key)
        return names is None or chosen[key].label in names or _short(chosen[key].label) in names

    asked = [rule.batches or most for rule in rules if all(fits(rule, key) for key in chosen)]
    return min(max(asked, default=0), most)
