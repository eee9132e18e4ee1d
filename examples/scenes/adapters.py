"""A clinic's letters in federated fine-tuning: Hugging Face's Trainer with LoRA on a causal language model.

One client trains one step; what travels is how far its adapters moved. Needs transformers and peft.
"""

import json
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import leakgauge as lg
from leakgauge.clients import FedAvg

TOKENS, VOCABULARY, RATE = 12, 200, 0.1


def net() -> nn.Module:
    """A small GPT-2 with adapters of rank 16."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 48, "n_layer": 1, "n_head": 4}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # dropout would hide part of the update
    base = GPT2LMHeadModel(GPT2Config(**sizes, **still, bos_token_id=0, eos_token_id=0))
    return get_peft_model(base, LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"))


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the Trainer minimises: it divides by all tokens, though the first is not predicted."""
    text = batch["text"]
    return model(input_ids=text, labels=text, num_items_in_batch=text.numel()).loss


def trained(model: nn.Module, letter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The adapters after one step of the Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            folder, max_steps=1, learning_rate=RATE, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
            per_device_train_batch_size=1, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        Trainer(model, how, train_dataset=[{"input_ids": letter, "labels": letter}]).train()
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def main() -> None:
    letters = torch.randint(1, VOCABULARY, (40, TOKENS), generator=torch.Generator().manual_seed(1))
    client = net()
    before = {name: p.detach().clone() for name, p in client.named_parameters() if p.requires_grad}
    task = lg.Task.of_step(net(), loss, {"text": lg.Text(TOKENS, VOCABULARY)})
    with tempfile.TemporaryDirectory() as folder:
        kept, step = f"{folder}/update.safetensors", FedAvg(epochs=1, batch_size=1, lr=RATE)
        lg.Update.between(before, trained(client, letters[0]), example_count=1).save(kept)
        audit = lg.audit(task, {"text": letters}, batches=1, clients=[step], update=kept)
    print(*audit.verdict.headline, sep="\n")
    for part in json.loads((audit.folder / "report.json").read_text())["trials"][0]["parts"]:
        print(f"{part['name']}: {part['measure']} {part['values']}, of the best guess {part['guess']}")
    print("Nobody tried:", ", ".join(one["what"].lower() for one in audit.decision["out_of_scope"]))


if __name__ == "__main__":
    main()
