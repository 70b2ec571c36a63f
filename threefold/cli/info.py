"""`threefold info`: what a saved model or state is, without loading a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.spec import Spec

LENGTH = 1024  # elements seen, for the size of states that grow


def info(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A saved model, or the file of a saved state.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a saved model or a saved state is."""
    if path.is_file():
        from threefold.runtime.state_files import describe_state

        facts = describe_state(path)
    else:
        facts = describe_model(path)
    if as_json:
        output.say_json(facts)
    else:
        say(facts)


def describe_model(folder: Path) -> dict[str, Any]:
    """What config.json and the header of the weights say, and what the spec means."""
    from threefold.models.config import WEIGHTS, read_config

    config = read_config(folder)
    tensors = count_tensors(folder / WEIGHTS)
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        "what": "model",
        "path": str(folder),
        "spec": config.spec.to_dict(),
        "parameters": config.parameters,
        "dtype": config.dtype,
        "tensors": tensors,
        "bytes_on_disk": sum(file.stat().st_size for file in files),
        "files": sorted(file.name for file in files),
        **abilities(config.spec, config.dtype),
        "tokenizer": config.tokenizer,
        "digest": config.spec.digest,
        "threefold_version": config.threefold_version,
    }


def count_tensors(weights: Path) -> int:
    """Tensors in a safetensors file, by its header, which is checked against the file's size."""
    from safetensors import SafetensorError, safe_open

    if not weights.is_file():
        raise ThreefoldError(f"{weights}: there is no such file; the model has no weights")
    try:
        with safe_open(weights, framework="numpy") as file:
            return len(file.keys())
    except (SafetensorError, OSError) as error:
        raise ThreefoldError(
            f"{weights}: not a safetensors file, or cut short ({error}); copy or save it again"
        ) from error


def abilities(spec: Spec, dtype: str) -> dict[str, Any]:
    """Forms and size of the state of the model that a spec describes, made without numbers."""
    import torch

    from threefold.models.table import build

    with torch.device("meta"):
        model: Any = build(spec).to(getattr(torch, dtype, torch.float32))
    return {"forms": list(model.forms), "state_bytes": model.state_size(LENGTH)}


def say(facts: dict[str, Any]) -> None:
    state = facts["what"] == "state"
    spec = facts["spec"]
    output.say(f"{facts['path']}: a {'state of a ' if state else ''}{spec['kind']} model\n")
    output.say_facts(
        (
            ("mixers", ", ".join(map(entry_text, spec["mixers"]))),
            ("width × depth", f"{spec['width']} × {spec['depth']}"),
            ("vocabulary", str(spec["vocabulary"])),
            ("channel", f"{entry_text(spec['channel'])} in {entry_text(spec['block'])} blocks"),
            ("options", [f"{name} = {value}" for name, value in spec["options"].items()]),
            *(state_facts(facts) if state else model_facts(facts)),
            ("spec", facts["digest"][:12]),
            ("written by", f"Threefold {facts['threefold_version']}"),
        )
    )


def entry_text(entry: Any) -> str:
    """A mixer of a spec: its name, and its keywords if it has some."""
    if isinstance(entry, str):
        return entry
    name, keywords = entry
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in keywords.items())})"


def model_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("parameters", f"{facts['parameters']:,} ({facts['dtype']})"),
        ("on disk", f"{output.readable(facts['bytes_on_disk'])} in {len(facts['files'])} files"),
        ("state of a row", output.readable(facts["state_bytes"])),
        ("forms", " ".join(facts["forms"])),
        ("tokenizer", facts["tokenizer"] or "none"),
    ]


def state_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    position = facts["position"]
    seen = "unknown" if position is None else ", ".join(map(str, position))
    return [
        ("rows", str(facts["rows"])),
        ("elements seen", seen),
        *holds(facts["notes"]),
        ("size", f"{output.readable(facts['bytes'])} in {len(facts['leaves'])} tensors"),
        ("on disk", output.readable(facts["bytes_on_disk"])),
    ]


def holds(notes: dict[str, Any]) -> list[tuple[str, str]]:
    """What a stream or a session has noted beside the state."""
    if "stream" in notes:
        settings, place = notes["stream"]["settings"], notes["stream"]["place"]
        what = f"a stream ({settings['what']}), its input read up to byte {place['offset']:,}"
        return [("holds", what)]
    return [("holds", f"a session (seed {notes['session']['seed']})")] if "session" in notes else []
