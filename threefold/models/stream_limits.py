"""What a model carries along a stream that may never end, and what may go wrong beyond training.

A state of fixed size that fades is at 20,000 elements what it was at 200.  A sum that nothing fades
grows, a history grows and holds positions that training has not seen, and learned positions end.
"""

from __future__ import annotations

from typing import Any

from threefold.layers.mixer import Mixer
from threefold.layers.table import mixer_entry

SHORT, LONG = 1 << 10, 1 << 20  # elements; a state that is larger after more of them grows


def stream_notes(model: Any) -> list[str]:
    """Why the errors of a model may grow along a stream; empty if its state fades."""
    notes: dict[str, None] = {}
    for mixer, name in _named_mixers(model):
        if mixer.remembers:
            notes[f"{name} {mixer.remembers}"] = None
        elif mixer.state_size(LONG) > mixer.state_size(SHORT):
            notes[f"{name} keeps every element, so its state grows without end"] = None
    option = getattr(getattr(model, "spec", None), "option", None)
    if option is not None and option("positions", "none") == "learned":
        notes["learned positions end at max_length"] = None
    return list(notes)


def stream_warning(model: Any) -> str:
    """The notes as one sentence; empty if there are none."""
    notes = stream_notes(model)
    if not notes:
        return ""
    return (
        f"{'; '.join(notes)}: errors on a stream that is longer than the examples of training may "
        "grow (mixers whose state fades: gru, lstm, mamba, gla, gated_delta_net, …)"
    )


def _named_mixers(model: Any) -> list[tuple[Mixer, str]]:
    """The causal mixers of a model, with their names."""
    spec = getattr(model, "spec", None)
    if spec is None:
        return []
    names = {mixer_entry(name).load(): name for name, _ in spec.entries}
    return [
        (module, names[type(module)])
        for module in model.modules()
        if type(module) in names and module.causal
    ]
