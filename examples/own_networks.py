"""Five networks as people write them, audited from Python: `python examples/own_networks.py`."""

import torch
from torch import Tensor, nn

import leakgauge as lg


class Residual(nn.Module):
    """A residual network with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.conv, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.avg_pool2d(torch.relu(x + self.conv(x)), 2)
        return self.head(x.flatten(1))


class Encoder(nn.Module):
    """A transformer encoder over the rows of a picture, with a position embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.place = nn.Linear(24, 32), nn.Parameter(torch.randn(8, 32) / 10)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.rows(x.transpose(1, 2).flatten(2)) + self.place).mean(1))


def plain() -> nn.Module:
    """Linear layers without biases."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64, bias=False), nn.ReLU(), nn.Linear(64, 4, bias=False))


class TwoInputs(nn.Module):
    """A network of two inputs, pixels and a number beside them, behind the one tensor that travels in an example."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.beside, self.head = nn.Linear(188, 32), nn.Linear(4, 8), nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        pixels, beside = x.flatten(1).split([188, 4], 1)
        return self.head(torch.cat([torch.relu(self.pixels(pixels)), torch.relu(self.beside(beside))], 1))


class Answers(nn.Module):
    """A model that answers with a dict, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(pixel_values)}


NETWORKS = {"residual": Residual, "encoder": Encoder, "no biases": plain, "two inputs": TwoInputs, "dict": Answers}


def main(evaluations: int = 60) -> dict[str, str]:
    """One audit a network: one client's gradient of one example, attacked by all that `auto` knows."""
    torch.manual_seed(0)
    examples, labels = torch.rand(64, 3, 8, 8), torch.arange(64) % 4
    budget, said = lg.Budget(gradient_evaluations=evaluations), {}
    for name, network in NETWORKS.items():
        audit = lg.audit(network(), (examples, labels), batches=1, attacks=["auto"], budget=budget, gallery=20)
        said[name] = audit.findings[0].sentence
    return said


if __name__ == "__main__":
    for name, sentence in main().items():
        print(name, sentence, sep=": ")
