"""What defences leave to an attacker beside what they cost, from objects. Run it, or open its cells in a notebook."""

# %% A model, and examples to train on, to test on and to attack: here made up
import torch
from torch import nn

import leakgauge as lg
from leakgauge.defenses import Clip, TopK, noise

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 3))
labels = torch.arange(240) % 3
inputs = 0.3 * torch.rand(240, 3, 8, 8) + 0.3 * labels.view(-1, 1, 1, 1)
train, test = (inputs[:180], labels[:180]), (inputs[180:], labels[180:])

# %% Two families of defences, each at its strengths
frontier = lg.frontier(
    model,
    test,
    {"top-k": [TopK(keep=0.1)], "clip and noise": [[Clip(norm=1.0), noise(sigma=0.1)]]},
    train=train,
    test=test,
    utility={"clients": 6, "per_round": 3, "rounds": 3},
    client=lg.clients.FedAvg(batch_size=8, lr=0.2),
    attack=lg.attacks.closed_form.LinearRead(),
    images=3,
    gallery=20,
)

# %% A line each, and what follows from them
for line in frontier.lines:
    print(line.row, line.accuracy, line.naive, line.adapted, line.highest, sep=", ")
print(*frontier.recommendation, sep="\n")
