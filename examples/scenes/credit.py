"""Who pays a loan back: a table of numbers, and of categories that are looked up, with BCE on one logit."""

import json

import torch
import torch.nn.functional as F
from torch import nn

import leakgauge as lg


class Credit(nn.Module):
    """Embeddings of region, job and purpose beside age, income, amount, months and instalments."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(16, 6), nn.Embedding(12, 6), nn.Embedding(5, 3)])
        self.body = nn.Sequential(nn.Linear(5 + 15, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        looked_up = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([numbers / torch.tensor([50.0, 5e4, 1e4, 30.0, 2.0]), *looked_up], 1))


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the bank minimises."""
    logits = model(batch["numbers"], batch["kinds"])
    return F.binary_cross_entropy_with_logits(logits, batch["defaulted"].float())


LOW, HIGH = (18.0, 0.0, 500.0, 6.0, 1.0), (90.0, 200_000.0, 50_000.0, 84.0, 4.0)


def task() -> lg.Task:
    """The training step."""
    torch.manual_seed(0)
    parts = {"numbers": lg.Numbers(5, LOW, HIGH), "kinds": lg.Categories((16, 12, 5)), "defaulted": lg.Labels(1)}
    return lg.Task.of_step(Credit(), loss, parts)


def customers(count: int) -> dict[str, torch.Tensor]:
    """Made up."""
    g = torch.Generator().manual_seed(1)
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    kinds = torch.stack([torch.randint(n, (count,), generator=g) for n in (16, 12, 5)], 1)
    defaulted = (torch.rand(count, 1, generator=g) < 0.2).long()
    return {"numbers": low + (high - low) * torch.rand(count, 5, generator=g), "kinds": kinds, "defaulted": defaulted}


def main() -> None:
    audit = lg.audit(task(), customers(80), batch=4, batches=2, budget=lg.Budget(gradient_evaluations=60))
    print(*audit.verdict.headline, sep="\n")
    for part in json.loads((audit.folder / "report.json").read_text())["trials"][0]["parts"]:
        print(f"{part['name']}: {part['measure']} {part['values']}, of the best guess {part['guess']}")
    print("Nobody tried:", ", ".join(one["what"].lower() for one in audit.decision["out_of_scope"]))


if __name__ == "__main__":
    main()
