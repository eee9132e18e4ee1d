"""How long a patient stays: a scan, two measurements and a ward that is looked up, taught a number of days.

Run it for an audit from Python; it writes the archive that `stay.yaml` names, for ``leakgauge audit stay.yaml``.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import leakgauge as lg


class Stay(nn.Module):
    """Three ways in, one number out."""

    def __init__(self) -> None:
        super().__init__()
        self.scan, self.ward, self.rest = nn.Linear(64, 96), nn.Embedding(5, 3), nn.Linear(5, 32)
        self.out = nn.Linear(128, 1)

    def forward(self, scan: torch.Tensor, numbers: torch.Tensor, ward: torch.Tensor) -> torch.Tensor:
        rest = self.rest(torch.cat([numbers / 100, self.ward(ward[:, 0])], 1))
        return self.out(torch.cat([self.scan(scan.flatten(1)), rest], 1).relu())


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the clients minimise."""
    return F.mse_loss(model(batch["scan"], batch["numbers"], batch["ward"])[:, 0], batch["days"])


def task() -> lg.Task:
    """The training step that the plan names as its model."""
    torch.manual_seed(0)
    parts = {
        "scan": lg.Image((1, 8, 8)),
        "numbers": lg.Numbers(2, low=(0.0, 40.0), high=(100.0, 200.0)),  # age, pulse
        "ward": lg.Categories((5,)),
        "days": lg.Values(low=0, high=30),
    }
    return lg.Task.of_step(Stay(), loss, parts, name="stay")


def patients(count: int = 48) -> dict[str, torch.Tensor]:
    """Made up: smooth scans, ages and pulses, wards, days."""
    g = torch.Generator().manual_seed(1)
    scans = F.interpolate(torch.rand(count, 1, 3, 3, generator=g), size=8, mode="bilinear")
    ages, pulses = 100 * torch.rand(count, generator=g), 40 + 160 * torch.rand(count, generator=g)
    wards, days = torch.randint(5, (count, 1), generator=g), 30 * torch.rand(count, generator=g)
    return {"scan": scans, "numbers": torch.stack([ages, pulses], 1), "ward": wards, "days": days}


if __name__ == "__main__":
    np.savez("patients.npz", **{name: values.numpy() for name, values in patients().items()})
    noise = {"noise": {"relative": 1.0}}
    audit = lg.audit(task(), patients(), batches=2, defenses=["none", noise], budget=lg.Budget(60))
    print(*audit.verdict.headline, sep="\n")
