"""Findings on chest X-rays: a DenseNet with one logit for each of six findings, and BCE. Needs monai."""

import json

import torch
import torch.nn.functional as F
from monai.networks.nets import DenseNet
from torch import nn

import leakgauge as lg

FINDINGS = ("atelectasis", "effusion", "mass", "nodule", "oedema", "pneumonia")


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the client minimises: several findings may hold."""
    return F.binary_cross_entropy_with_logits(model(batch["scan"]), batch["findings"].float())


def task() -> lg.Task:
    """The training step, of a small DenseNet with its statistics fixed."""
    torch.manual_seed(0)
    net = DenseNet(2, 1, len(FINDINGS), init_features=16, growth_rate=8, block_config=(2, 2))
    return lg.Task.of_step(net.eval(), loss, {"scan": lg.Image((1, 32, 32)), "findings": lg.Labels(len(FINDINGS))})


def patients(count: int) -> dict[str, torch.Tensor]:
    """Made up: smooth scans, and findings of which each holds for one patient in four."""
    g = torch.Generator().manual_seed(1)
    scans = F.interpolate(torch.rand(count, 1, 6, 6, generator=g), size=32, mode="bilinear")
    return {"scan": scans, "findings": (torch.rand(count, len(FINDINGS), generator=g) < 0.25).long()}


def main() -> None:
    audit = lg.audit(task(), patients(40), batches=2, budget=lg.Budget(gradient_evaluations=20))
    print(*audit.verdict.headline, sep="\n")
    for part in json.loads((audit.folder / "report.json").read_text())["trials"][0]["parts"]:
        print(f"{part['name']}: {part['measure']} {part['values']}, of the best guess {part['guess']}")
    print("Nobody tried:", ", ".join(one["what"].lower() for one in audit.decision["out_of_scope"]))


if __name__ == "__main__":
    main()
