"""A spec is checked when it is made, cannot be changed, and round-trips to JSON."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys

import pytest

import threefold
from threefold import Spec, ThreefoldError

PLAIN = {"kind": "language", "width": 32, "depth": 2, "mixers": "gla"}
RICH = Spec(
    "language",
    48,
    4,
    (
        "mamba",
        ("gla", {"heads": 3, "gate_temperature": 16.5}),
        ("mamba", {"delta_range": (0.1, 1)}),
    ),
    vocabulary=1000,
    channel=("swiglu", {"hidden": 64}),
    block=("post_norm", {"norm": "rms", "eps": 1e-6}),
    options={"tie": False, "dropout": 0.1},
)


@pytest.mark.parametrize("spec", [Spec(**PLAIN), RICH])
def test_round_trips(spec: Spec) -> None:
    for again in (
        Spec.from_json(spec.to_json()),
        Spec.from_dict(json.loads(json.dumps(spec.to_dict(), indent=2))),
        copy.deepcopy(spec),
        pickle.loads(pickle.dumps(spec)),
        Spec(**{name: getattr(spec, name) for name in spec.to_dict()}),
    ):
        assert again == spec
        assert again.to_json() == spec.to_json()
        for name in ("mixers", "channel", "block", "options"):
            assert getattr(again, name) == getattr(spec, name)
        assert again.digest == spec.digest
        assert len({again, spec}) == 1


def test_equal_descriptions_are_equal() -> None:
    assert (
        Spec(**PLAIN) == Spec("language", 32, 2, [("gla", {})]) == Spec("language", 32, 2, ("gla",))
    )
    assert Spec(**PLAIN).mixers == ("gla",)
    assert RICH.entries[2] == ("mamba", {"delta_range": (0.1, 1)})
    assert RICH.channel_entry == ("swiglu", {"hidden": 64})
    assert Spec(**PLAIN, block=["pre_norm", {}]).block == "pre_norm"
    assert RICH.block_entry == ("post_norm", {"norm": "rms", "eps": 1e-6})
    assert Spec(**PLAIN).option("tie") is True
    assert RICH.option("tie") is False


def test_the_digest_follows_every_field() -> None:
    changes = {
        "width": 33,
        "depth": 3,
        "mixers": "mamba",
        "vocabulary": 9,
        "channel": "none",
        "block": ("pre_norm", {"eps": 1e-6}),
        "options": {"tie": True},
    }
    specs = [Spec(**{**PLAIN, name: value}) for name, value in changes.items()]
    assert len({spec.digest for spec in [Spec(**PLAIN), *specs]}) == len(changes) + 1
    # Written out: files in the world carry its digest.
    canonical = (
        '{"block":"pre_norm","channel":"swiglu","depth":2,"kind":"language","mixers":["gla"],'
        '"options":{},"vocabulary":256,"width":32}'
    )
    assert Spec(**PLAIN).digest == hashlib.sha256(canonical.encode()).hexdigest()


def test_nothing_can_be_changed() -> None:
    with pytest.raises(AttributeError):
        RICH.width = 3  # type: ignore[misc]
    for options in (RICH.options, RICH.entries[1][1]):
        for change in (
            lambda o: o.update(tie=True),
            lambda o: o.__setitem__("tie", True),
            lambda o: o.pop("tie"),
            lambda o: o.clear(),
        ):
            with pytest.raises(TypeError, match="immutable"):
                change(options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "langauge"}, "unknown kind 'langauge'; did you mean 'language'"),
        ({"kind": None}, "unknown kind None"),
        ({"width": 0}, "width is 0, expected an integer from 1"),
        ({"width": 32.0}, r"width is 32\.0, expected an integer"),
        ({"width": True}, "width is True, expected an integer"),
        ({"depth": -1}, "depth is -1"),
        ({"depth": 10**9}, "depth is 1000000000, expected an integer from 1 to 4096"),
        ({"vocabulary": "256"}, "vocabulary is '256'"),
        ({"mixers": "mamba3"}, "unknown mixer 'mamba3'; did you mean 'mamba"),
        ({"mixers": ()}, r"mixers is \(\), expected a name or a tuple"),
        ({"mixers": 7}, "mixers is 7"),
        ({"mixers": ("gla", {"heads": 2})}, r"entry 1 of mixers is \{'heads': 2\}"),
        ({"mixers": (("gla", {"head": 2}),)}, "no option 'head'; did you mean 'heads'"),
        ({"mixers": (("gla", {"width": 2}),)}, "leave out 'width'"),
        (
            {"mixers": (("gla", {"heads": float("nan")}),)},
            "contains nan, which JSON cannot represent",
        ),
        ({"mixers": (("gla", {"heads": object}),)}, "which JSON cannot represent"),
        ({"channel": "swigul"}, "unknown channel 'swigul'; did you mean 'swiglu'"),
        ({"channel": ("mlp", {"hide": 2})}, "no option 'hide'; did you mean 'hidden'"),
        ({"channel": ("none", {"hidden": 2})}, "channel 'none' has no option 'hidden'"),
        ({"block": "prenorm"}, "unknown block 'prenorm'; did you mean 'pre_norm'"),
        ({"block": ("pre_norm", {"epsilon": 2})}, "no option 'epsilon'; did you mean 'eps'"),
        ({"block": ("pre_norm", {"depth": 2})}, "block 'pre_norm' has no option 'depth'"),
        ({"block": ("plain", {"norm": "rms"})}, "block 'plain' has no option 'norm'"),
        ({"options": {"tied": True}}, "no option 'tied'; did you mean 'tie'"),
        ({"options": {"tie": 1}}, "option 'tie' is 1, expected a bool"),
        ({"options": {"dropout": True}}, "option 'dropout' is True, expected a float"),
        ({"options": [1]}, r"options is \[1\], expected a dict"),
    ],
)
def test_bad_fields_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        Spec(**{**PLAIN, **change})


def test_bad_json_is_refused() -> None:
    with pytest.raises(ThreefoldError, match="not JSON"):
        Spec.from_json("{")
    with pytest.raises(ThreefoldError, match="given list"):
        Spec.from_json("[]")
    with pytest.raises(ThreefoldError, match="spec lacks depth, mixers"):
        Spec.from_dict({"kind": "language", "width": 3})
    with pytest.raises(ThreefoldError, match="no field 'mixer'; did you mean 'mixers'"):
        Spec.from_dict({**PLAIN, "mixer": "gla"})


def test_values_that_a_constructor_refuses_are_told_with_the_mixer() -> None:
    with pytest.raises(ThreefoldError, match="mixer 'gla' with width=32, heads=3: 3 heads do not"):
        threefold.build(Spec(**{**PLAIN, "mixers": (("gla", {"heads": 3}),)}))
    with pytest.raises(ThreefoldError, match="mixer 'gla' with width=32, heads='four'"):
        threefold.build(Spec(**{**PLAIN, "mixers": (("gla", {"heads": "four"}),)}))
    with pytest.raises(ThreefoldError, match="given dict, expected a Spec"):
        threefold.build(PLAIN)
    with pytest.raises(ThreefoldError, match="expected a Spec of kind 'language'"):
        threefold.LanguageModel("gla")


def test_reading_a_spec_needs_no_torch() -> None:
    code = (
        "import sys, threefold\n"
        "from threefold.models.config import read_config\n"
        "threefold.Spec('language', 32, 2, ('mamba', 'gla'), channel='rwkv')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
