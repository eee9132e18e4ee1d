"""Does a patient get worse: an LSTM on twelve hours of six vital signs, with BCE on one logit."""

import json

import torch
import torch.nn.functional as F
from torch import nn

import leakgauge as lg

SIGNS = ("pulse", "pressure", "breaths", "temperature", "oxygen", "glucose")


class Ward(nn.Module):
    """The last hour's state, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(len(SIGNS), 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, signs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(signs)[0][:, -1])


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the ward minimises."""
    return F.binary_cross_entropy_with_logits(model(batch["signs"]), batch["worse"].float())


def task() -> lg.Task:
    """The training step; signs are in shares of their ranges."""
    torch.manual_seed(0)
    return lg.Task.of_step(Ward(), loss, {"signs": lg.Series((12, len(SIGNS))), "worse": lg.Labels(1)})


def patients(count: int) -> dict[str, torch.Tensor]:
    """Made up: signs that drift."""
    g = torch.Generator().manual_seed(1)
    steps = 0.05 * torch.randn(count, 12, len(SIGNS), generator=g)
    signs = (torch.rand(count, 1, len(SIGNS), generator=g) + steps.cumsum(1)).clamp(0, 1)
    return {"signs": signs, "worse": (torch.rand(count, 1, generator=g) < 0.3).long()}


def main() -> None:
    # few numbers are searched for, and each evaluation costs little
    audit = lg.audit(task(), patients(60), batches=2, budget=lg.Budget(gradient_evaluations=6000))
    print(*audit.verdict.headline, sep="\n")
    for part in json.loads((audit.folder / "report.json").read_text())["trials"][0]["parts"]:
        print(f"{part['name']}: {part['measure']} {part['values']}, of the best guess {part['guess']}")
    print("Nobody tried:", ", ".join(one["what"].lower() for one in audit.decision["out_of_scope"]))


if __name__ == "__main__":
    main()
