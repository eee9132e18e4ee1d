"""What a plan must agree on with the captured update that it audits."""

from __future__ import annotations

from leakgauge.clients.protocol import Protocol
from leakgauge.errors import require
from leakgauge.update import Update

WEIGHTS = "weights: a file of the parameters that the server broadcast, before local training"


def refuse_contradiction(update: Update, protocol: Protocol, *, examples: int, has_weights: bool) -> None:
    """Raises `InputError` where a plan says otherwise than the header of its update, or leaves its model to chance.

    An attack on a misread update fails for reasons that have nothing to do with privacy, and its failure would be
    taken for protection.

    Args:
        update: as captured.
        protocol: the plan's.
        examples: the plan's, of one client.
        has_weights: whether the plan says which parameters the client was sent.
    """
    header = update.header
    require(
        has_weights,
        "model",
        "names no weights, and an update belongs to those that its client was sent",
        f"add {WEIGHTS}",
    )
    count = header.example_count
    require(
        count is None or count == examples,
        "data.batch",
        f"is {examples}, and the update's header says that {count} example{'s' * (count != 1)} made it",
        f"set it to {count}, with the examples of that round",
    )
    sends, sent = protocol.kind.value, header.kind.value
    fitting = "fedavg" if sent == "delta" else "fedsgd"
    require(
        sends == sent,
        "clients[0]",
        f"sends a {sends}, and the update's header says that it is a {sent}",
        f"give a protocol that sends a {sent}, e.g. {fitting}, or capture the update anew",
    )
