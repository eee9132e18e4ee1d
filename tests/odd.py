"""Plans, models, parts and command lines that are odd: each must end in one line or in rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from torch import Tensor, nn

from leakgauge.cli import main
from leakgauge.compute import Compute
from leakgauge.data import InMemory
from leakgauge.defenses import Defense
from leakgauge.errors import InputError
from leakgauge.study.grammar import read_yaml
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial

BASE = "model: {mlp: {hidden: [4]}}\ndata: {source: samples, size: 8, batches: 1}\nattacks: [closed-form]\n"
PLANS = {
    "noise on: 1": BASE + "defenses: [{noise: {on: 1}}]",
    "noise off": BASE + "defenses: [{noise: {off: 1}}]",
    "seed of 31 digits": BASE + "seeds: [1234567890123456789012345678901]",
    "seed below zero": BASE + "seeds: [-1]",
    "seed of 64 bits": BASE + "seeds: [18446744073709551616]",
    "seed that is no number": BASE + "seeds: [x]",
    "3 000 brackets": "attacks: " + "[" * 3000 + "]" * 3000,
    "3 000 braces": "attacks: " + "{a: " * 3000 + "1" + "}" * 3000,
    "!!int x": BASE + "gallery: !!int 'x'",
    "!!float x": BASE + "gallery: !!float 'x'",
    "!!binary": BASE + "name: !!binary 'not base64!'",
    "!!timestamp": BASE + "name: !!timestamp '2001-99-99'",
    "!!set": BASE + "knows: !!set {labels}",
    "a date as a name": BASE + "name: 2026-01-01",
    "a lone surrogate": BASE + 'name: "\\ud800"',
    "markup as a name": BASE + 'name: "[/bold]"',
    "an escape as a name": BASE + 'name: "\\e[2J"',
    "an empty name": BASE + 'name: ""',
    "a key that is a list": BASE + "? [a, b]\n: c",
    "a key that is a number": BASE + "1: 2",
    "a key that is a mapping": BASE + "? {a: b}\n: c",
    "an alias of itself": "a: &a [*a]\n" + BASE,
    "a mapping of itself": "data: &a {source: *a}",
    "a billion laughs": "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n" + BASE,
    "source: os.path:join": BASE.replace("samples", "'os.path:join'"),
    "source: builtins:exit": BASE.replace("samples", "'builtins:exit'"),
    "source: a module alone": BASE.replace("samples", "'os:'"),
    "source: a colon": BASE.replace("samples", "':'"),
    "source: a number": BASE.replace("samples", "3"),
    "source: a list": BASE.replace("samples", "[a]"),
    "source: null": BASE.replace("samples", "null"),
    "source: /dev/null": BASE.replace("samples", "'npz:/dev/null'"),
    "source: /dev/zero": BASE.replace("samples", "'folder:/dev/zero'"),
    "source: a nul byte": BASE.replace("samples", '"npz:a\\0b"'),
    "source: a long name": BASE.replace("samples", "'npz:" + "a" * 5000 + "'"),
    "size 0": BASE.replace("size: 8", "size: 0"),
    "size below zero": BASE.replace("size: 8", "size: -8"),
    "size of a million": BASE.replace("size: 8", "size: 100000000"),
    "size 1": BASE.replace("size: 8", "size: 1"),
    "batches of a million": BASE.replace("batches: 1", "batches: 1000000"),
    "batch of 10^30": BASE.replace("batches: 1", "batch: 1000000000000000000000000000000"),
    "start of 10^30": BASE.replace("batches: 1", "start: 1000000000000000000000000000000"),
    "gallery of 10^30": BASE + "gallery: 1000000000000000000000000000000",
    "gallery 1": BASE + "gallery: 1",
    "hidden of 10^15": BASE.replace("[4]", "[1000000000000000]"),
    "hidden of 10^30": BASE.replace("[4]", "[1000000000000000000000000000000]"),
    "hidden below zero": BASE.replace("[4]", "[-4]"),
    "hidden of zero": BASE.replace("[4]", "[0]"),
    "hidden of nothing": BASE.replace("[4]", "[]"),
    "hidden of words": BASE.replace("[4]", "[four]"),
    "hidden null": BASE.replace("[4]", "null"),
    "model: a list of nothing": BASE.replace("{mlp: {hidden: [4]}}", "[null]"),
    "model: two keys": BASE.replace("{mlp: {hidden: [4]}}", "{mlp: {}, lenet: {}}"),
    "model: builtins:print": BASE.replace("{mlp: {hidden: [4]}}", "'builtins:print'"),
    "model: os:abort by name alone": BASE.replace("{mlp: {hidden: [4]}}", "'nowhere.at.all:abort'"),
    "model: weights of nothing": BASE.replace("hidden: [4]", "weights: nothing.safetensors"),
    "model: weights of a folder": BASE.replace("hidden: [4]", "weights: /tmp"),
    "lr not a number": BASE + "clients: [{fedavg: {lr: .nan}}]",
    "lr infinite": BASE + "clients: [{fedavg: {lr: .inf}}]",
    "lr zero": BASE + "clients: [{fedavg: {lr: 0}}]",
    "lr of 1e308": BASE + "clients: [{fedavg: {lr: 1.0e+308}}]",
    "epochs of words": BASE + "clients: [{fedavg: {epochs: many}}]",
    "epochs below zero": BASE + "clients: [{fedavg: {epochs: -1}}]",
    "clients: nobody": BASE + "clients: []",
    "clients: null": BASE + "clients: [null]",
    "clip of zero": BASE + "defenses: [{clip: {norm: 0}}]",
    "clip not a number": BASE + "defenses: [{clip: {norm: .nan}}]",
    "topk above one": BASE + "defenses: [{topk: {keep: 2}}]",
    "topk of nothing": BASE + "defenses: [{topk: {keep: 0}}]",
    "noise of 1e308": BASE + "defenses: [{noise: {sigma: 1.0e+308}}]",
    "defences in defences": BASE + "defenses: [[[none]]]",
    "an empty defence": BASE + "defenses: [[]]",
    "knows everything": BASE + "knows: [everything]",
    "knows null": BASE + "knows: null",
    "knows twice": BASE + "knows: [labels, labels]",
    "attacks of a server": BASE + "attacks: [server-read]",
    "an attack in itself": BASE + "attacks: [{naive: {attack: {naive: {attack: {naive: {attack: auto}}}}}}]",
    "an attack without steps": BASE + "attacks: [{inverting-gradients: {steps: 0}}]",
    "no budget": BASE + "budget: {gradient_evaluations: 0}",
    "no time": BASE + "budget: {seconds: 1.0e-9}",
    "an empty gate": BASE + "gate: {}",
    "a gate of nothing": BASE + "gate: {identified: null}",
    "a gate not a number": BASE + "gate: {psnr: {worst: .nan}}",
    "only what is not there": BASE + "only: [{attack: auto}]",
    "only nothing": BASE + "only: []",
    "an update that is none": BASE + "update: nothing.safetensors",
    "an update that is a folder": BASE + "update: /tmp",
    "lpips of nothing": BASE + "lpips: nothing",
    "a server of nobody": BASE + "server: nobody",
    "mode: both": BASE + "mode: both",
    "nothing": "",
    "a number": "3",
    "a list": "[a]",
    "a text": "text",
    "two documents": BASE + "---\n" + BASE,
    "a tab": "\tname: x",
    "a byte order mark": "\ufeff" + BASE,
    "a nul": "name: \0",
    "a percent": "%YAML 9.9\n---\n" + BASE,
    "the same key twice": BASE + "name: a\nname: b",
    "a merge of nothing": BASE + "<<: 3",
}


class Gives(nn.Module):
    """A network whose answer or whose parts are odd."""

    def __init__(self, how: Callable[[Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(192, 4)
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.how(self.head(x.flatten(1)))


class TwoInputs(nn.Module):
    """Needs what nobody gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(x.flatten(1)) + y


def _raises(kind: type[BaseException]) -> Callable[[Tensor], Any]:
    def how(out: Tensor) -> Any:
        del out
        raise kind("odd")

    return how


def _changed(change: Callable[[nn.Module], Any]) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    change(net)
    return net


def _shared() -> nn.Module:
    one = nn.Linear(192, 192)
    return nn.Sequential(nn.Flatten(), one, one, nn.Linear(192, 4))


def _old_norm(net: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(net[1])  # type: ignore[index]


def _hooked(net: nn.Module) -> None:
    net.register_forward_hook(lambda *_: None)
    net.register_forward_pre_hook(lambda *given: given[1])


MODELS: dict[str, Callable[[], Any]] = {
    "a tuple": lambda: Gives(lambda out: (out, out)),
    "a list": lambda: Gives(lambda out: [out]),
    "a dict": lambda: Gives(lambda out: {"logits": out}),
    "an empty dict": lambda: Gives(lambda _: {}),
    "nothing": lambda: Gives(lambda _: None),
    "a number": lambda: Gives(lambda _: 3.0),
    "a scalar": lambda: Gives(lambda out: out.sum()),
    "squeezed": lambda: Gives(lambda out: out.squeeze()),
    "numbers in a row": lambda: Gives(lambda out: out.flatten()),
    "too few classes": lambda: Gives(lambda out: out[:, :1]),
    "a picture": lambda: Gives(lambda out: out[:, :, None, None]),
    "complex numbers": lambda: Gives(lambda out: out * 1j),
    "whole numbers": lambda: Gives(lambda out: out.long()),
    "not a number": lambda: Gives(lambda out: out * float("nan")),
    "infinity": lambda: Gives(lambda out: out / 0),
    "detached": lambda: Gives(lambda out: out.detach()),
    "no gradient": lambda: Gives(lambda out: torch.zeros_like(out)),
    "sparse": lambda: Gives(lambda out: out.to_sparse()),
    "in NumPy": lambda: Gives(lambda out: torch.from_numpy(out.detach().numpy())),
    "randomly": lambda: Gives(lambda out: out + torch.randn_like(out)),
    "raises KeyError": lambda: Gives(_raises(KeyError)),
    "raises MemoryError": lambda: Gives(_raises(MemoryError)),
    "raises StopIteration": lambda: Gives(_raises(StopIteration)),
    "raises SystemExit": lambda: Gives(_raises(SystemExit)),
    "raises NotImplementedError": lambda: Gives(_raises(NotImplementedError)),
    "raises RecursionError": lambda: Gives(_raises(RecursionError)),
    "in place": lambda: Gives(lambda out: out.relu_().add_(1)),
    "an unused part": lambda: Gives(lambda out: out, spare=nn.Linear(3, 3)),
    "two inputs": TwoInputs,
    "a lazy module": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)),
    "no parameters": lambda: nn.Flatten(),
    "an empty module": nn.Sequential,
    "no forward": nn.Module,
    "frozen": lambda: _changed(lambda net: net.requires_grad_(False)),
    "old weight_norm": lambda: _changed(_old_norm),
    "weight_norm": lambda: _changed(lambda net: nn.utils.parametrizations.weight_norm(net[1])),
    "spectral_norm": lambda: _changed(lambda net: nn.utils.parametrizations.spectral_norm(net[1])),
    "hooks": lambda: _changed(_hooked),
    "shared layers": _shared,
    "bfloat16": lambda: _changed(lambda net: net.bfloat16()),
    "float16": lambda: _changed(lambda net: net.half()),
    "float64": lambda: _changed(lambda net: net.double()),
    "complex": lambda: _changed(lambda net: net.to(torch.complex64)),
    "on no device": lambda: _changed(lambda net: net.to("meta")),
    "a script": lambda: torch.jit.trace(_changed(bool), torch.rand(1, 3, 8, 8)),
    "parameters not finite": lambda: _changed(lambda net: nn.init.constant_(net[1].weight, float("nan"))),
    "no model but a class": lambda: nn.Linear,
    "no model but a function": lambda: torch.relu,
    "a recurrent network": lambda: nn.Sequential(nn.Flatten(), nn.GRU(192, 4)),
    "batch norm of one": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 4)),
}


@dataclass(frozen=True)
class Odd:
    """One odd thing; `run` gives what came of it."""

    name: str
    run: Callable[[Path], str]


def examples(inputs: Tensor | None = None) -> InMemory:
    made = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0)) if inputs is None else inputs
    return InMemory(inputs=made, labels=torch.arange(len(made)) % 4)


def of_objects(**parts: Any) -> dict[str, Any]:
    """A plan of objects, with one odd one."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    data = {"source": examples(), "batches": 1}
    return {"model": net, "data": data, "attacks": ["closed-form"], "defenses": ["none"], "gallery": 3} | parts


def rows(raw: dict[str, Any]) -> str:
    """The first trial, as it would be stored."""
    plan = resolve_plan(raw)
    return str(run_trial(plan, plan.trials()[0], compute=Compute()).record["status"])


def _of_plan(text: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        (folder / "plan.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        return rows(read_yaml(folder / "plan.yaml"))

    return run


def _of_model(make: Callable[[], Any]) -> Callable[[Path], str]:
    return lambda _: rows(of_objects(model={"odd": make()}))


class Breaks(Defense):
    """A defence that does one odd thing to the update."""

    def __init__(self, how: Callable[[Any], Any]) -> None:
        self.how = how

    def on_update(self, tensors: Any, generator: torch.Generator) -> Any:
        return self.how(tensors)


DEFENSES: dict[str, Callable[[Any], Any]] = {
    "forgets a tensor": lambda t: dict(list(t.items())[1:]),
    "adds a tensor": lambda t: {**t, "more": torch.ones(3)},
    "gives nothing": lambda _: None,
    "gives lists": lambda t: {k: v.tolist() for k, v in t.items()},
    "gives another shape": lambda t: {k: v[:1] for k, v in t.items()},
    "gives whole numbers": lambda t: {k: v.long() for k, v in t.items()},
    "gives complex numbers": lambda t: {k: v * 1j for k, v in t.items()},
    "gives what is not finite": lambda t: {k: v / 0 for k, v in t.items()},
    "gives zeros": lambda t: {k: v * 0 for k, v in t.items()},
    "gives other names": lambda t: {k + "x": v for k, v in t.items()},
    "gives numbers for names": lambda t: dict(enumerate(t.values())),
    "gives sparse tensors": lambda t: {k: v.to_sparse() for k, v in t.items()},
    "gives half precision": lambda t: {k: v.half() for k, v in t.items()},
    "gives 1e-30": lambda t: {k: v * 1e-30 for k, v in t.items()},
}

COMMANDS = {
    "no command": [],
    "no such command": ["audits"],
    "an empty argument": [""],
    "audit of a folder": ["audit", "/tmp", "-o", "{out}"],
    "audit of /dev/null": ["audit", "/dev/null", "-o", "{out}"],
    "audit into a file": ["audit", "{plan}", "-o", "{plan}"],
    "audit below a file": ["audit", "{plan}", "-o", "{plan}/below"],
    "audit into /dev/full": ["audit", "{plan}", "-o", "/dev/full"],
    "audit into /proc": ["audit", "{plan}", "-o", "/proc/here"],
    "audit on no device": ["audit", "{plan}", "-o", "{out}", "--device", "nowhere"],
    "audit on a GPU that is not there": ["audit", "{plan}", "-o", "{out}", "--device", "cuda:99"],
    "audit by nobody": ["audit", "{plan}", "-o", "{out}", "--workers", "0"],
    "a long output": ["audit", "{plan}", "-o", "x" * 5000],
    "gate of nothing": ["gate", "{out}"],
    "gate of a file": ["gate", "{plan}"],
    "report of nothing": ["report"],
    "report of a file": ["report", "{plan}"],
    "inspect of a plan": ["inspect", "{plan}"],
    "inspect of a folder": ["inspect", "/tmp"],
    "inspect of /dev/null": ["inspect", "/dev/null"],
    "inspect of /dev/zero": ["inspect", "/dev/zero"],
    "captured of nothing": ["captured", "{out}", "--model", "lenet"],
    "captured of braces": ["captured", "{out}", "--model", "{" * 500],
    "frontier of a plan of an audit": ["frontier", "{plan}", "-o", "{out}"],
    "frontier of nothing": ["frontier", "nothing.yaml", "-o", "{out}"],
    "count of nothing": ["count", "nothing"],
    "cohort of a plan": ["cohort", "{plan}"],
    "lint of nothing": ["lint", "nothing.py"],
    "privacy of nothing": ["privacy", "show", "nothing.json"],
    "list of nothing": ["list", "attacks", "nothing"],
    "fit without data": ["fit", "classifier", "lenet", "--data", "nothing", "-o", "{out}.safetensors"],
    "fit into nowhere": ["fit", "classifier", "lenet", "--data", "samples", "-o", "/nowhere/x.safetensors"],
}


def _of_command(words: list[str]) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        plan = folder / "plan.yaml"
        plan.write_text(BASE)
        given = [w.replace("{plan}", str(plan)).replace("{out}", str(folder / "out")) for w in words]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = CliRunner().invoke(main, given)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        said = [line for line in (done.stderr or done.output).splitlines() if line.strip()]
        if done.exit_code == 2 and len(said) != 1 and words:
            raise AssertionError(f"{len(said)} lines: {said[:3]}")
        if done.exit_code == 2:
            raise InputError("command", "is odd", "; ".join(said)[:200])
        return f"exit {done.exit_code}"

    return run


ODD = (
    *(Odd(f"plan: {name}", _of_plan(text)) for name, text in PLANS.items()),
    *(Odd(f"model: {name}", _of_model(make)) for name, make in MODELS.items()),
    *(
        Odd(f"defence: {name}", lambda _, how=how: rows(of_objects(defenses=[{"odd": Breaks(how)}])))  # type: ignore[misc]
        for name, how in DEFENSES.items()
    ),
    *(Odd(f"command: {name}", _of_command(words)) for name, words in COMMANDS.items()),
)


def outcome(odd: Odd, folder: Path) -> str:
    """A status, ``refused``, or the name of an error that nothing may raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return odd.run(folder)
        except InputError as error:
            return "refused" if "\n" not in str(error) else f"{len(str(error).splitlines())} lines"
        except BaseException as error:  # noqa: BLE001 - what is looked for
            return f"foreign {type(error).__name__}: {error}"[:300]
