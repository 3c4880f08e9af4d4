"""The command line of the prompt methods: sweeps and twins, defaults and presets."""

import math

import pytest

from fedaudit.command import cli
from fedaudit.command.config import preset_words
from fedaudit.machinery.errors import InputError
from tests.test_cli import refuse

TINY = "--rounds 2 --clients 4 --train 12 --test 2 --threads 1".split()


def test_a_prompt_that_is_too_long_for_the_text_encoder(capsys, tmp_path):
    sentence = refuse(capsys, [*TINY, "--method", "promptfl", "--prompt-length", "60", "--out", str(tmp_path)])
    assert all(word in sentence for word in ("60", "32")), sentence
    assert not list(tmp_path.glob("runs/*"))


def plan(words: str):
    return cli.read_command(words.split()).plan


BUDGETS = {
    "dpfpl": {"dpfpl:epsilon=none": math.inf, "dpfpl:epsilon=0.1": 0.1},  # the default has a noise-free twin
    "dpfpl --epsilon 0.2 --no-twin": {"dpfpl": 0.2},
    "dpfpl --epsilon none": {"dpfpl": math.inf},
    "dpfpl --epsilon 0.1,0.1,none": {"dpfpl:epsilon=0.1": 0.1, "dpfpl:epsilon=none": math.inf},
    # what trains nothing is not swept
    "zeroshot,local --epsilon 0.1": {"zeroshot": math.inf, "local:epsilon=none": math.inf, "local:epsilon=0.1": 0.1},
}


class TestVariants:
    @pytest.mark.parametrize("words", BUDGETS)
    def test_every_budget_is_a_variant_once(self, words):
        found = {label: variant.privacy.epsilon for label, variant in plan(f"--method {words}").methods.items()}
        assert list(found.items()) == list(BUDGETS[words].items())

    def test_a_sweep_is_a_product(self):
        found = plan("--method dpfpl,promptfl --rank 1,8 --epsilon none,0.4").methods
        named = ("dpfpl:rank=1", "dpfpl:rank=8", "promptfl")
        assert list(found) == [f"{name}:epsilon={epsilon}" for name in named for epsilon in ("none", "0.4")]
        assert found["dpfpl:rank=1:epsilon=0.4"].params.rank == 1
        assert found["dpfpl:rank=8:epsilon=none"].params.rank == 8

    def test_a_label_wins_over_a_flag(self):
        found = plan("--method dpfpl,dpfpl:residual=false:epsilon=0.4 --epsilon 0.1 --no-twin").methods
        own = {label: (v.params.residual, v.privacy.epsilon) for label, v in found.items()}
        assert own == {"dpfpl": (True, 0.1), "dpfpl:residual=false:epsilon=0.4": (False, 0.4)}

    def test_noise_free_twins_are_one_training_however_the_others_clip(self):
        one, other = (plan(f"--method dpfpl --epsilon 0.1 {more}").cells for more in ("", "--clip batch --delta 1e-6"))
        assert one[0].training_key == other[0].training_key
        assert one[1].training_key != other[1].training_key

    def test_everything_that_changes_numbers_changes_the_key(self):
        changes = (
            "--epsilon 0.2", "--delta 1e-6", "--clip batch", "--sigma calibrated", "--rank 4", "--no-residual", "--batch 4",
            "--domain print", "--backbone resnet", "--seed 1", "--prompt-length 8", "--rounds 99", "--sampler poisson",
        )  # fmt: skip
        keys = [plan(f"--method dpfpl --no-twin {more}").cells[0].training_key for more in ("", *changes)]
        assert len({*keys}) == len(keys)


def test_defaults_are_those_of_the_embedded_preset():
    found = plan("--task digits")
    assert list(found.methods) == ["dpfpl:epsilon=none", "dpfpl:epsilon=0.1"]
    assert (found.rounds, found.clients, found.per_round, found.attack) == (100, 10, 10, None)
    assert (found.settings.batch, found.settings.prompt_length) == (8, 16)
    assert plan("--method dpfpl").task == "glyphs"
    assert plan("").learner == "lora"


def test_presets_of_the_papers_tables():
    tables, ablation = plan("--preset dpfpl-tables --train 8 --test 1"), plan("--preset dpfpl-ablation")
    assert (len(tables.methods), len(ablation.methods)) == (4 * 6, 2 * 5 * 6)
    assert tables.task_params.holdout == ablation.task_params.holdout == 0
    assert all(client.member.all() for client in tables.data.federation.clients)
    assert plan("--preset dpfpl-figure3").task_params.holdout == 0.5, "whose records are attacked"


@pytest.mark.usefixtures("unsafe_but_quick")
def test_a_training_without_held_out_records_says_so(tmp_path, capsys):
    words = "--method promptfl,fedotp --no-twin --epsilon none --rounds 1 --clients 2 --train 6 --test 1 --threads 1 --holdout 0"
    assert cli.main([*words.split(), "--out", str(tmp_path)]) == 0
    (page,) = tmp_path.glob("reports/*/index.html")
    text = page.read_text()
    assert "Clients train on all of their records (--holdout 0)" in text
    assert text.count("all records trained on") == 2, "the paper's and ours"


def test_fedpgp_of_the_papers_presets_is_their_baseline():
    """DP-FPL's tables have four methods, and FedPGP without the contrastive term (A.2)."""
    for preset in ("dpfpl-paper", "dpfpl-paper-cifar100", "dpfpl-tables"):
        assert "--method=promptfl,fedotp,fedpgp:mu=0,dpfpl" in preset_words(preset)
    found = plan("--method promptfl,fedotp,fedpgp:mu=0,dpfpl --rank 8 --epsilon none").methods.values()
    assert [v.params.mu for v in found if v.method == "fedpgp"] == [0.0]


def test_the_papers_settings_ask_for_the_weights_that_are_not_here():
    with pytest.raises(InputError, match=r"--weights openai: .*hf download"):
        plan("--preset dpfpl-paper --method dpfpl")
