"""Reads hostile files while every socket, process and opened file is written down; run in a process of its own.

Prints what was opened outside of the folder of the files, of Python and of the package, and whatever else happened.
"""

from __future__ import annotations

import json
import os
import random
import site
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

FORBIDDEN = (
    "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "pty.",
    "ftplib.", "urllib.", "http.", "smtplib.", "webbrowser.", "os.remove", "os.symlink", "shutil.rmtree",
)  # fmt: skip
"""Prefixes of events that reading a file has no reason for."""

is_watching = False
seen: Counter[str] = Counter()
own: list[str] = []


def hook(event: str, args: tuple[Any, ...]) -> None:
    if not is_watching:
        return
    if event.startswith(FORBIDDEN):
        if not (event == "os.remove" and inside(args[0])):
            seen[f"{event} {args!r}"[:200]] += 1
    elif event == "open" and not isinstance(args[0], int) and not inside(args[0]):
        seen[f"open {args[0]!r}"] += 1
    elif event == "pickle.find_class" and not str(args[0]).startswith(("torch", "collections", "numpy", "__builtin__")):
        seen[f"{event} {args!r}"[:200]] += 1


def inside(path: Any) -> bool:
    if path == "<unknown>":  # Python itself looks for the line of a syntax error
        return True
    whole = os.path.realpath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""
    return whole.startswith(tuple(own))


def main(each: int) -> None:
    global is_watching
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    from damaged import READERS, damage, outcome
    from hostile import HOSTILE

    here = Path(tempfile.mkdtemp())
    package = Path(sys.modules["leakgauge"].__file__ or "").parent
    own.extend(
        os.path.realpath(p)
        for p in (
            here,
            Path(__file__).parent,
            sys.prefix,
            sys.base_prefix,
            os.__file__,
            package,
            *site.getsitepackages(),
            *(p for p in sys.path if Path(p).name == "site-packages"),
        )
    )
    own.append(str(Path(os.path.realpath(os.__file__)).parent))
    own.extend(("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/mime.types", "/usr/share/zoneinfo"))
    tried = 0
    sys.addaudithook(hook)
    warnings.simplefilter("ignore")
    for reader in READERS:
        path = here / reader.name.replace(".", "-") / reader.name
        path.parent.mkdir()
        reader.write(path)
        data, dice = path.read_bytes(), random.Random(0)
        for _ in range(each):
            path.write_bytes(damage(data, dice))
            is_watching = True
            outcome(reader, path)
            is_watching = False
            tried += 1
    said = {}
    for name, hostile in HOSTILE.items():
        folder = here / name.replace(" ", "-")
        folder.mkdir()
        path = hostile.write(folder)
        is_watching = True
        said[name] = outcome(hostile, path)
        is_watching = False
        tried += 1
    made = sorted(str(p.relative_to(here)) for p in here.rglob("*") if "EVIL" in p.name)
    outside = sorted(str(p) for p in (here.parent / "EVIL", Path("EVIL")) if p.exists())
    print(json.dumps({"tried": tried, "seen": seen, "said": said, "made": made + outside}))  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
