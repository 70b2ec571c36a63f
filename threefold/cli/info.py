"""`threefold info`: describe a saved model or state, and check that it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.drawing.text import format_bytes
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.config import ModelConfig

STATE_LENGTH = 1024  # elements after which the size of the state is given


def info(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="Folder of a run or of a model, or a state file."),
    ],
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a saved model or a saved state."""
    from threefold.models.saving import find_model_folder

    if path.is_file():
        from threefold.runtime.state_files import describe_state

        facts = describe_state(path)
    else:
        facts = describe_model(find_model_folder(path))
    if as_json:
        output.say_json(facts)
    else:
        say(facts)


def describe_model(folder: Path) -> dict[str, Any]:
    """Describe a model from its config.json, and check its weights."""
    from threefold.models.config import read_config

    config = read_config(folder)
    model = build_empty(config)
    files = [file for file in folder.rglob("*") if file.is_file()]
    has_state = hasattr(model, "state_size") and getattr(model, "causal", True)
    return {
        "type": "model",
        "path": str(folder),
        "spec": config.spec.to_dict(),
        "parameters": config.parameters,
        "dtype": config.dtype,
        "adapters": config.adapters,
        "members": config.members,
        "tensors": check_weights(folder, config, model),
        "bytes_on_disk": sum(file.stat().st_size for file in files),
        "files": sorted(file.name for file in files),
        "forms": list(getattr(model, "forms", ("parallel",))),
        "state_bytes": model.state_size(STATE_LENGTH) if has_state else 0,
        "tokenizer": config.tokenizer,
        "digest": config.spec.digest,
        "threefold_version": config.threefold_version,
    }


def build_empty(config: ModelConfig) -> Any:
    """The model of a config, without weights."""
    import torch

    from threefold.models.ensemble import build_members

    with torch.device("meta"):
        return build_members(config.spec, config.members).to(
            getattr(torch, config.dtype, torch.float32)
        )


def check_weights(folder: Path, config: ModelConfig, model: Any) -> int:
    """Count the tensors; refuse files that are absent, and weights that cannot be those saved."""
    from threefold.models.config import CARD, WEIGHTS
    from threefold.models.saving import check_files, read_weights

    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ThreefoldError(
            f"{weights}: file not found, so the model has no weights; copy or save it again"
        )
    check_files(config, folder)
    if not (folder / CARD).exists():
        raise ThreefoldError(f"{folder / CARD}: file not found; copy the model again")
    tensors = read_weights(folder, config, model)
    bad = [name for name, tensor in tensors.items() if bool(tensor.isnan().any())]
    if bad:
        raise ThreefoldError(
            f"{weights}: {bad[0]} contains NaN ({len(bad):,} of {len(tensors):,} tensors do), so "
            "every answer of this model is NaN; train it again with a lower learning rate"
        )
    return len(tensors)


def say(facts: dict[str, Any]) -> None:
    is_state = facts["type"] == "state"
    spec = facts["spec"]
    output.say(f"{facts['path']}: a {'state of a ' if is_state else ''}{spec['kind']} model\n")
    blocks = f"{entry_text(spec['channel'])} in {entry_text(spec['block'])} blocks"
    of_mixers = [
        ("mixers", ", ".join(map(entry_text, spec["mixers"]))),
        ("vocabulary", str(spec["vocabulary"])),
        ("channel mixer", blocks),
    ]
    output.say_facts(
        (
            ("width × depth", f"{spec['width']} × {spec['depth']}"),
            *(of_mixers if spec["mixers"] else []),
            ("options", [f"{name} = {value}" for name, value in spec["options"].items()]),
            *(state_facts(facts) if is_state else model_facts(facts)),
            ("spec digest", facts["digest"][:12]),
            ("written by", f"Threefold {facts['threefold_version']}"),
        )
    )


def entry_text(entry: Any) -> str:
    """Format an entry of a spec: its name, and its options if it has some."""
    if isinstance(entry, str):
        return entry
    name, options = entry
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _part_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    parts = []
    if members := facts["members"]:
        parts.append(("ensemble", f"{members} models, whose answers are averaged"))
    if rank := facts["adapters"]:
        parts.append(("adapters", f"rank {rank}, not merged (`threefold merge` does it)"))
    return parts


def model_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("parameters", f"{facts['parameters']:,} ({facts['dtype']})"),
        *_part_facts(facts),
        (
            "on disk",
            f"{format_bytes(facts['bytes_on_disk'])} in {len(facts['files'])} files",
        ),
        (
            "state size",
            f"{format_bytes(facts['state_bytes'])} per sequence, after {STATE_LENGTH} elements",
        ),
        ("forms", " ".join(facts["forms"])),
        ("tokenizer", facts["tokenizer"] or "none"),
    ]


def state_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    position = facts["position"]
    seen = "unknown" if position is None else ", ".join(map(str, position))
    return [
        ("batch size", str(facts["rows"])),
        ("elements seen", seen),
        *saved_by(facts["notes"]),
        ("size", f"{format_bytes(facts['bytes'])} in {len(facts['leaves'])} tensors"),
        ("on disk", format_bytes(facts["bytes_on_disk"])),
    ]


def saved_by(notes: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the stream or session that saved a state."""
    if "stream" in notes:
        mode = notes["stream"]["settings"]["mode"]
        offset = max(0, notes["stream"]["input_position"]["offset"])
        return [("saved by", f"a stream (mode {mode}) at byte {offset:,} of its input")]
    if "session" in notes:
        return [("saved by", f"a session (seed {notes['session']['seed']})")]
    return []
