"""What the updates of your own model give away of your own examples. Run it, or open its cells in a notebook."""

# %% A model and examples: here made up, so that the script runs anywhere in seconds
import torch
from torch import nn

import leakgauge as lg
from leakgauge.defenses import NoDefense, noise

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 4))
inputs, labels = torch.rand(200, 3, 8, 8), torch.arange(200) % 4

# %% One gradient of one example, with no defence and with noise
audit = lg.audit(
    model,
    (inputs, labels),
    batches=4,
    clients=[lg.clients.FedSGD()],
    defenses=[NoDefense(), noise(relative=10.0)],
    budget=lg.Budget(gradient_evaluations=60),
    gallery=40,
    gate={"identified": {"max": 0.05}},
)

# %% What a reader may conclude
print(*audit.verdict.headline, sep="\n")
for finding in audit.findings:
    print(finding.sentence)
print("gate passed" if audit.passed else "gate failed")

# %% The page, the JSON file and the trials in a folder of yours:
# audit.save("audit-of-my-model")
