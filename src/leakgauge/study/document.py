"""report.json: all that a finished audit knows, and what its page states beside the answer (means, risks, evidence,
limits); what is unknown is said to be."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from leakgauge.errors import FOREIGN, count_of
from leakgauge.files import json_text, write_whole
from leakgauge.privacy.accounting import Release, sentence, success_bound
from leakgauge.privacy.guarantee import DELTA, USEFUL, Mechanism, NoGuarantee, in_words, spent_in_one_update
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve, resolve_defense
from leakgauge.risk.lint import NOT_RUN, SENT, LintFinding, read_lint, records_of
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.decision import decide, label_words
from leakgauge.study.judging.gate import Reason, Why, capital
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import VERDICT, Verdict, verdict
from leakgauge.study.levels import unvetted
from leakgauge.study.store import Store

KNOWABLE = ("example_count", "local_training", "defense", "labels", "buffers", "public_data", "draws")
GUESS = 1e-3  # chance of a right guess without the update, for which the bound on reconstruction is stated
CORE_HOUR = 0.05  # US dollars: a stated price, for scale
MEMBERSHIP = "whether a known person took part is not tested: LiRA or RMIA, e.g. by Privacy Meter or LeakPro"
OUT_OF_SCOPE = {
    "Membership inference": MEMBERSHIP,
    "The final model": "what the trained model remembers is not tested: extraction and membership tests on the model",
    "Linkability": "whether two updates are of one person is not tested; assume yes where each carries examples",
    "Attributes": "properties of examples other than labels are not tested",
    "Later attacks": "attacks that nobody has published yet; audit again as the tool gains some",
}
MEANS = (
    "Means reasonably likely to be used, by anyone who gets hold of an update: published attacks, run here with the "
    "time and knowledge stated. A motivated party may spend more; what counts is cost, time and technology at release."
)
ROWS = 20  # gravest rows of the table that are named
AGAIN = "model, local training, defence, server, kind of data or this package change, or a stronger attack is published"


def signed(
    judged: Verdict, config: Mapping[str, Any], contents: Mapping[str, str], lint: Sequence[LintFinding]
) -> dict[str, object]:
    """What a person signs: the page's answer, and what it states beside it."""
    own = [f for f in judged.findings if not f.control]
    decision = decide(judged, gate_of(config), captured=bool(config.get("update")), lint=lint)
    return {
        "answer": decision.answer.value,
        "title": decision.title,
        "reason": decision.reason,
        "rests_on": decision.rests_on,
        "rows": [f"{f.attack} on {f.scenario.words}" for f in own if f.level is own[0].level][:ROWS],
        "next": vars(decision.next) | {"step": capital(decision.next.step)},
        "origin": _origin(config, own),
        "came_back": _came_back(own),
        "sure": _sure(judged, own),
        "labels": capital(label_words(own)),
        "actors": _actors(own),
        "means": [
            {
                "attack": f.attack,
                "setting": f.scenario.words,
                "knowledge": list(f.scenario.knowledge),
                "gradient_evaluations": f.cost.gradient_evaluations,
                "seconds": f.cost.seconds,
                "dollars": round(f.cost.seconds / 3600 * CORE_HOUR, 4),
                "public_code": True,
            }
            for f in own
            if f.level is not Level.NOT_APPLICABLE
        ],
        "means_left_out": [f.sentence for f in own if f.level is Level.NOT_APPLICABLE],
        "singling_out": [
            {
                "setting": f.scenario.words,
                "attack": f.attack,
                "rate": seen.rate,
                "control": seen.chance,
                "naive": seen.naive,
                "residual_risk": None if f.residual_risk is None else asdict(f.residual_risk),
                "low": seen.low,
                "high": seen.high,
                "clients": f.clients,
                "examples": seen.n,
                "worst_client": seen.worst,
                "line_up": seen.gallery + 1,
            }
            for f in own
            if (seen := f.identified) is not None
        ],
        "privacy_budget": budgets(config, lint),
        "withheld": [field for field in KNOWABLE if all(field not in f.scenario.knowledge for f in own)],
        "hashes": dict(contents),
        "lint": records_of(lint),
        "out_of_scope": [{"what": what, "where": where} for what, where in OUT_OF_SCOPE.items()],
        "reasonably_likely_means": MEANS,
        "residual": "This page says what was tried and what came of it. It does not say that updates are anonymous.",
        "again_when": AGAIN,
    }


def _origin(config: Mapping[str, Any], own: Sequence[Finding]) -> dict[str, str]:
    if isinstance(config.get("update"), list):
        names, clients = [Path(str(folder)).name for folder in config["update"]], max(f.clients for f in own)
        of = f"{len(names)} real updates of {count_of(clients, 'client')}"
        return {"kind": "captured", "words": f"Captured: {of}, {', '.join(names)}"}
    if config.get("update"):
        file = Path(*Path(str(config["update"])).parts[-2:])
        return {"kind": "captured", "words": f"Captured: one real update, {file}"}
    source = own[0].scenario.data.source if own else "unknown"
    return {"kind": "simulated", "words": f"Simulated: clients were trained here on data of {source}, not captured"}


def _came_back(own: Sequence[Finding]) -> str:
    seen = [(f, f.identified, f.recovered) for f in own if f.identified is not None and f.recovered is not None]
    if not seen:
        return "Nothing can be said: no attack gave a result."
    worst, picked, recovered = max(seen, key=lambda one: (one[2] / max(one[0].images, 1), one[1].rate))
    thing, defense = worst.scenario.data.kind, worst.scenario.stated
    if worst.tokens is not None:
        return f"{capital(worst.tokens.words)}; {picked.count} of {worst.images} singled out ({defense})"
    highest = "" if worst.psnr is None else f", at best {worst.psnr.highest:.1f} dB"
    return (
        f"{recovered} of {worst.images} {thing}s came back; by likeness {picked.count} picked out of a line-up of "
        f"{picked.gallery + 1}, where chance picks {picked.chance * worst.images:.2g}{highest} "
        f"({worst.attack.split('(')[0]}, {defense})"
    )


def _sure(verdict: Verdict, own: Sequence[Finding]) -> str:
    if verdict.explained is not None and not verdict.explained.holds:
        return "Not: the plan does not explain the captured update, so failures of attacks mean nothing"
    seen = [(f, f.identified) for f in own if f.identified is not None]
    if not seen:
        return "Not at all: there is no result"
    if any(f.certified for f, _ in seen):
        return "Certain for what an attack certified by its own check; more may come back to other attacks"
    if verdict.level in (Level.EXPOSED, Level.PARTIAL):
        return "Certain that it can happen; how often is less sure: see the intervals in report.html"
    if any(f.flags for f, _ in seen):
        return "Little: this result cannot be relied on, and report.html says why"
    worst, picked = max(seen, key=lambda one: one[1].upper)
    weak = "" if worst.power.shown else "; the attack was not shown to work here"
    share = f"up to {100 * picked.upper:.0f} % may be singled out (95 % confidence){weak}"
    return f"From {count_of(worst.clients, 'client')}: {share}"


def _actors(own: Sequence[Finding]) -> list[dict[str, str]]:
    secure = any(f.scenario.client.startswith("secure-aggregation") for f in own)
    access = "the sum of a cohort's updates" if secure else "single updates in clear"
    role, skill = "passive: follows the protocol and keeps what it sees", "runs published code; no statistics needed"
    wire = f"{access}, where transport or storage is not encrypted"
    who = [
        ("whoever operates the server, or gets into it", role, access, skill),
        ("whoever reads the wire or the server's logs and backups", "passive", wire, "the same"),
    ]
    if servers := ", ".join(sorted({f.scenario.server for f in own if f.scenario.server_changes})):
        changes = "must change what clients train; leakgauge inspect looks for it"
        who.append((f"a server that crafts what it broadcasts ({servers})", "active", access, changes))
    return [dict(zip(("who", "role", "access", "skill"), one, strict=True)) for one in who]


def budgets(config: Mapping[str, Any], lint: Sequence[LintFinding]) -> list[dict[str, object]]:
    """ε of one update and what it says of reconstruction, for each defence of the plan, or why there is none."""
    batch = (config.get("data") or {}).get("batch", 1)
    raw = any(f.rule == SENT for f in lint)
    found = []
    for i, described in enumerate(config.get("defenses") or ["none"]):
        entry: dict[str, object] = {"defense": str(described), "epsilon": None, "delta": None}
        try:
            named = resolve_defense(described, f"defenses[{i}]")
            clients = [resolve(CLIENTS, c, "clients").value for c in config.get("clients") or ["fedsgd"]]
            spent = spent_in_one_update(named.value, clients, batch)
        except FOREIGN as error:  # an object of the user's own, of which the report keeps a description
            found.append(entry | {"reason": f"not known: {error}"})
            continue
        entry["defense"] = named.label
        if isinstance(spent, NoGuarantee):
            found.append(entry | {"reason": spent.reason})
        elif raw:
            found.append(entry | {"reason": "running statistics leave the client beside the update, without noise"})
        else:
            found.append(entry | _stated(spent))
    return found


def _stated(spent: Mechanism) -> dict[str, object]:
    z, steps, epsilon = spent.noise_multiplier, spent.releases, spent.epsilon(DELTA)
    if epsilon >= USEFUL:
        return {"reason": f"noise over clip is {z:.3g}: ε is {in_words(epsilon)}"}
    release = [Release(noise_multiplier=z, sample_rate=1.0, steps=steps)]
    counted = "one Gaussian release" if steps == 1 else f"the {steps} noisy local steps of one update that meet it"
    return {
        "epsilon": round(epsilon, 4),
        "delta": DELTA,
        "unit": f"one {spent.unit.value}, there or not",
        "releases": steps,
        "at_most": float(f"{success_bound(release, GUESS):.4g}"),
        "robustness": sentence(release, GUESS),
        "reason": f"exact for {counted} without sampling; rounds and tuning add to it: leakgauge privacy",
    }


SCHEMA_VERSION = 3
REPORT = "report.json"
FREE_SPACE = "free space, then `leakgauge report` the folder"


@dataclass(frozen=True)
class AuditReport:
    """The parts of report.json; trials are written one by one."""

    schema_version: Literal[3]
    leakgauge_version: str
    created_at: str
    config: dict[str, Any]
    environment: dict[str, Any]
    counts_only: bool
    decision: dict[str, Any]
    trials: list[Trial]
    verdict: Verdict


def schema() -> dict[str, Any]:
    return TypeAdapter(AuditReport).json_schema(mode="serialization")


def gate_of(config: Mapping[str, Any]) -> GateConfig | None:
    return None if config.get("gate") is None else GateConfig.model_validate(config["gate"])


def summary(store: Store, judged: Verdict) -> dict[str, Any]:
    """The report without its trials and its verdict."""
    audit = store.audit
    config, lint = json.loads(audit.config), read_lint(store.folder, audit.identity)
    return {
        "schema_version": SCHEMA_VERSION,
        "leakgauge_version": audit.version,
        "created_at": audit.created_at,
        "config": config,
        "environment": json.loads(audit.environment),
        "counts_only": audit.counts_only,
        "decision": signed(judged, config, json.loads(audit.contents), lint),
    }


def verdict_of(store: Store) -> Verdict:
    """What the finished trials say together; they are read one by one, and kept as far as the verdict asks. While some
    have not run, no lint of this audit lies beside them, or running statistics travel, no gate passes."""
    trials = [trial.judged for trial in store.trials()]
    lint, left = read_lint(store.folder, store.audit.identity), store.missing()
    proof = next((f"{f.where}: {f.evidence}" for f in lint if f.rule == "exact-read"), "")
    lacking = [Reason(Why.FAILED, "unfinished", f"{left} trials have not run")] if left else []
    lacking += [Reason(Why.FAILED, "lint", f.evidence) for f in lint if f.rule == NOT_RUN]
    gate = gate_of(json.loads(store.audit.config))
    if gate is not None:
        sent = [f for f in lint if f.rule == SENT]
        lacking += [Reason(Why.STATISTICS, "statistics", f"{f.evidence}: {f.hint}", setting=f.where) for f in sent]
        below = unvetted(json.loads(store.audit.environment)) if gate.vetted else ()
        lacking += [Reason(Why.UNVETTED, "vetted", words) for words in below]
    return verdict(trials, gate, proof, lacking)


def write_json(store: Store, told: Mapping[str, Any], judged: Verdict) -> Path:
    """Writes report.json beside the store, whole or not at all.

    Byte-equal between runs of the same plan on the same machine once every ``seconds`` and ``created_at`` is deleted;
    trials are sorted by id; no number in it is infinite or NaN.
    """
    return write_whole(store.folder / REPORT, _parts(told, store.each(), judged), FREE_SPACE)


def _parts(told: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], judged: Verdict) -> Iterator[str]:
    """`json.dumps` of the document with an indent of one, piece by piece."""
    yield json_text(told)[: -len("\n}\n")] + ',\n "trials": ['
    between = "\n  "
    for trial in trials:
        yield between + json_text(trial).strip().replace("\n", "\n  ")
        between = ",\n  "
    yield ("]" if between == "\n  " else "\n ]") + ',\n "verdict": '
    yield json_text(VERDICT.dump_python(judged, mode="json")).strip().replace("\n", "\n ") + "\n}\n"
