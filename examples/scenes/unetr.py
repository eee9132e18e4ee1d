"""A lesion in a volume: MONAI's UNETR, a transformer over patches, with Dice + CE. Needs monai.

The client sends the gradient of one volume and its mask. With fewer patches than the transformer is wide, the volume is
read without a search.
"""

import json

import torch
import torch.nn.functional as F
from monai.networks.nets import UNETR
from torch import nn

import leakgauge as lg
from leakgauge.step import losses

SIDE = 32  # of a volume; hospitals have 96 and a width of 768


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the client minimises."""
    return losses.dice_ce(model(batch["scan"]), batch["mask"])


def task() -> lg.Task:
    """The training step: 8 patches of 16³ voxels, each a row of 48 numbers."""
    torch.manual_seed(0)
    net = UNETR(1, 2, (SIDE, SIDE, SIDE), feature_size=2, hidden_size=48, mlp_dim=64, num_heads=4)
    return lg.Task.of_step(
        net, loss, {"scan": lg.Volume((1, SIDE, SIDE, SIDE)), "mask": lg.Mask(2, (SIDE, SIDE, SIDE))}
    )


def patients(count: int) -> dict[str, torch.Tensor]:
    """Made up: smooth tissue from 0 to 1, and a brighter ball in it, which the mask names."""
    g = torch.Generator().manual_seed(1)
    grid = torch.stack(torch.meshgrid(*[torch.arange(float(SIDE))] * 3, indexing="ij"))
    centres = SIDE * (0.3 + 0.4 * torch.rand(count, 3, 1, 1, 1, generator=g))
    balls = (grid - centres).norm(dim=1) < SIDE / 6
    tissue = F.interpolate(torch.rand(count, 1, 4, 4, 4, generator=g), size=SIDE, mode="trilinear")
    return {"scan": 0.7 * tissue + 0.3 * balls[:, None], "mask": balls.long()}


def main() -> None:
    audit = lg.audit(task(), patients(12), batches=1, budget=lg.Budget(gradient_evaluations=5))
    print(*audit.verdict.headline, sep="\n")
    for part in json.loads((audit.folder / "report.json").read_text())["trials"][0]["parts"]:
        print(f"{part['name']}: {part['measure']} {part['values']}, of the best guess {part['guess']}")
    print("Nobody tried:", ", ".join(one["what"].lower() for one in audit.decision["out_of_scope"]))


if __name__ == "__main__":
    main()
