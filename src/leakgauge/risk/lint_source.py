"""What a Flower app's source says about its own privacy settings. The source is parsed, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from leakgauge.risk.lint import LintFinding, Severity

NOISE, CLIPS, MASKS = ("LocalDpMod",), ("fixedclipping_mod", "adaptiveclipping_mod"), ("secagg_mod", "secaggplus_mod")


def lint_source(path: Path) -> Iterator[LintFinding]:
    """Rules on calls with constant arguments; what is computed is not followed."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    rounds = next((r for call in calls if isinstance(r := _argument(call, "num_rounds", -1), int) and r > 1), None)
    for call in calls:
        where = f"{path.name}, line {call.lineno}"
        if _name(call.func) in NOISE:
            yield from _local_dp(call, where, rounds)
        for keyword in call.keywords:
            if keyword.arg == "mods" and isinstance(keyword.value, ast.List):
                yield from _order([_name(e) for e in keyword.value.elts], where)
        if _name(call.func) == "DataLoader" and _argument(call, "batch_size", 1) == 1:
            hint = "larger batches, and clipping with noise"
            text = "a DataLoader with batches of one: no other example hides in a step's gradient"
            yield LintFinding("batch-of-one", Severity.MEDIUM, where, text, hint)


def _local_dp(call: ast.Call, where: str, rounds: int | None) -> Iterator[LintFinding]:
    """``LocalDpMod(clipping_norm, sensitivity, epsilon, delta)``: noise √(2·ln(1.25/δ))·sensitivity/ε on each reply."""
    clip, sensitivity = _argument(call, "clipping_norm", 0), _argument(call, "sensitivity", 1)
    epsilon = _argument(call, "epsilon", 2)
    if isinstance(clip, int | float) and isinstance(sensitivity, int | float) and sensitivity < clip:
        yield LintFinding(
            "sensitivity-is-not-the-clip",
            Severity.HIGH,
            where,
            f"noise is scaled with sensitivity {sensitivity:g}, but updates are clipped to {clip:g}: the noise is too "
            f"small by a factor of {clip / sensitivity if sensitivity else float('inf'):.3g}",
            "set sensitivity to the clipping norm (twice it, where one client's data replace another's)",
        )
    if isinstance(epsilon, int | float):
        total = f"; {rounds} rounds are configured" if rounds else ""
        yield LintFinding(
            "epsilon-of-a-round",
            Severity.MEDIUM,
            where,
            f"ε = {epsilon:g} holds for each reply, not for the training{total}: rounds add up",
            "count all rounds: leakgauge privacy --unit client --sample-rate 1 --rounds N",
        )
        if epsilon > 1:
            yield LintFinding(
                "classical-gaussian",
                Severity.LOW,
                where,
                f"√(2·ln(1.25/δ))·sensitivity/ε is proven for ε ≤ 1 only, ε = {epsilon:g} is given",
                "leakgauge privacy test counts this noise exactly",
            )


def _order(mods: list[str], where: str) -> Iterator[LintFinding]:
    """The first mod is the outermost, so replies pass the list from its end."""
    reply = list(reversed(mods))
    for i, name in enumerate(reply):
        if name in NOISE and any(before in MASKS for before in reply[:i]):
            yield LintFinding(
                "order-of-mods",
                Severity.HIGH,
                where,
                f"replies pass {' → '.join(reply)}: the noise is added after the masks, where it is not clipped noise "
                "any more and the sum may not unmask",
                "list the secure-aggregation mod first: mods = [secaggplus_mod, LocalDpMod(…)]",
            )
        if name in NOISE and any(after in CLIPS for after in reply[i + 1 :]):
            yield LintFinding(
                "order-of-mods",
                Severity.MEDIUM,
                where,
                f"replies pass {' → '.join(reply)}: clipping after the noise scales the noise down with the data",
                "list the clipping mod last, so that it is the first that a reply passes",
            )


def _name(node: ast.expr) -> str:
    """Last part of a dotted name, of a call's function too."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _argument(call: ast.Call, name: str, position: int) -> object:
    """A constant argument by keyword or position; `None` where there is none."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is None and 0 <= position < len(call.args):
        given = call.args[position]
    try:
        return None if given is None else ast.literal_eval(given)
    except (ValueError, TypeError, SyntaxError):
        return None
