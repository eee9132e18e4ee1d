"""The words of a frontier plan, which are those of audit plans where both have them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from leakgauge.study.grammar import BudgetConfig, SourceConfig, Strict, validated

EXAMPLE = "see `leakgauge frontier --example`"


class AttackedConfig(SourceConfig):
    """The examples that are attacked: by default of the test data of `utility` where these are given, in their own
    size, else of ``samples``. A row may change `batch`.

    Attributes:
        images: how many examples are attacked in each row, in batches as the row has them.
    """

    images: int = Field(default=8, ge=1)


class Utility(Strict):
    """The training in simulation. Without `train` and `test` accuracy is not measured.

    Attributes:
        train, test: a source as under ``data`` of an audit plan, or ``{source: …, size: 32}``.
        clients, alpha: the training data are dealt to so many by `dirichlet_partition`.
        per_round, rounds, server_lr, evaluate_every: see `FederatedTraining`.
        examples, test_examples: use only so many of the first; `None` for all.
        seed: of partition, weights and draws.
    """

    train: SourceConfig | None = None
    test: SourceConfig | None = None
    clients: int = Field(default=100, ge=1)
    alpha: float = Field(default=0.5, gt=0)
    per_round: int = Field(default=10, ge=1)
    rounds: int = Field(default=100, ge=1)
    server_lr: float = Field(default=1.0, gt=0)
    evaluate_every: int = Field(default=10, ge=1)
    examples: int | None = Field(default=None, ge=1)
    test_examples: int | None = Field(default=None, ge=1)
    seed: int = 0


class Tolerance(Strict):
    """What the recommendation calls good enough.

    Attributes:
        accuracy: loss against the undefended training, as a share (0.02 is two points).
        identified: share of the pictures that the stronger attacker may identify.
    """

    accuracy: float = Field(default=0.02, ge=0, lt=1)
    identified: float = Field(default=0.05, ge=0, lt=1)


class FrontierConfig(Strict):
    """A frontier plan as written.

    Attributes:
        client: what every client runs, in training and when it is attacked; a row may change it.
        defenses: family → its strengths, from weak to strong. A strength is a defence as in an audit plan, or a
            mapping as `RowConfig` has it. The undefended row is always there.
        delta, accountant: of the rows that are differentially private.
        budget: of the undefended row; rows whose candidates cost more gradients get as many more.
    """

    name: str = "frontier"
    identity: str | None = None
    model: Any = "small-convnet"
    mode: Literal["eval", "train"] = "eval"
    data: AttackedConfig = AttackedConfig()
    client: Any = Field({"fedavg": {"epochs": 1, "batch_size": 32, "lr": 0.2, "shuffle": True}})
    knows: list[str] = Field(["example_count", "local_training", "defense"])
    attack: Any = "auto"
    budget: BudgetConfig = BudgetConfig(gradient_evaluations=300)
    seeds: list[int] = Field(default=[0], min_length=1)
    gallery: int = Field(default=100, ge=1)
    lpips: str | None = None
    defenses: dict[str, list[Any]] = Field(min_length=1)
    utility: Utility = Utility()
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["rdp", "prv"] = "rdp"
    tolerance: Tolerance = Tolerance()


class RowConfig(Strict):
    """One strength in long form.

    Attributes:
        defense, client: the mechanism on each client, and the clients' protocol.
        batch: examples of the attacked client.
        cohort: clients whose updates are aggregated before the server sees anything.
        train: ``false`` for a defence that is too slow to train with.
    """

    defense: Any = "none"
    client: Any = None
    batch: int | None = Field(default=None, ge=1)
    cohort: int = Field(default=1, ge=1)
    train: bool = True


def parse(raw: dict[str, Any]) -> FrontierConfig:
    return validated(FrontierConfig, raw, EXAMPLE)


def parse_row(raw: Any, field: str) -> RowConfig:
    if isinstance(raw, dict) and raw and set(raw) <= set(RowConfig.model_fields):
        return validated(RowConfig, raw, EXAMPLE, f"{field}.")
    return RowConfig(defense=raw)
