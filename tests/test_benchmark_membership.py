"""The benchmark of attacks on prompts: on a tiny federation every attack of the server's has a row, of the null as of the canaries."""

import numpy as np
import pytest

from benchmarks import membership
from benchmarks.whole_nulls import SMALL


@pytest.fixture(
    scope="module",
    # slow: every attack; quick: of one model, of shadow models, of messages
    params=["loss,lira,cosine", pytest.param("all", marks=pytest.mark.slow)],
)
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> membership.Setting:
    words = SMALL["prompts"].replace("--attack all", f"--attack {request.param}")
    words = words.replace("--canaries 6", "--canaries 24")
    return membership.prepare(f"{words} --threads 1 --quiet", str(tmp_path_factory.mktemp("benchmark")))


def test_every_attack_has_its_null(setting: membership.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    shadows = 4
    monkeypatch.setattr(membership, "REPETITIONS", 5 * shadows)
    found = membership.null(setting)
    for plugin, _ in setting.attacks:
        own = [signal for signal in plugin.facts.names() if signal in found]
        assert own, plugin.name
        for signal in own:
            covers, claims, values = found[signal]
            assert len(values) == 5 * shadows
            assert np.isfinite(values).all()
            assert covers + claims <= 5 * shadows
            # coins that nobody drew when the models were trained: far fewer than all may look like a leak
            assert claims <= 7, signal  # of 20 with chance .025: more in one of 10^8


def test_every_attack_is_measured_on_the_canaries(setting: membership.Setting) -> None:
    found = {signal: (interval, again) for signal, interval, again in membership.positive(setting)}
    for plugin, _ in setting.attacks:
        assert set(plugin.facts.names()) & found.keys(), plugin.name
    alone = {signal for signal, (_, again) in found.items() if np.isfinite(again)}
    assert {"lira/online", "loss"} <= alone
    assert {"gradnorm", "trajectory", "outputfree"} & found.keys() <= alone
    assert "cosine/mean" in found.keys() - alone
    assert not {"decompose", "fedmia/2"} & alone
