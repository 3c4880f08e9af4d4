"""Flags that every command takes, and those that stand alone: --version, --list KIND, --open, --threads; whose a flag is."""

import json
from unittest import mock

import pytest

import fedaudit
from fedaudit.command import browser, cli, listing, nightly, owners
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.learners import METHODS


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"FedAudit {fedaudit.__version__}\n"


@pytest.mark.parametrize("words", ["--version --rounds 3", "--list attacks --seed 1", "--list --version", "--list a b"])
def test_what_stands_alone_is_refused_beside_others(words, capsys):
    assert cli.main(words.split()) == 2
    assert "stands alone" in capsys.readouterr().err


def test_lists_are_parts_of_all_and_an_unknown_one_is_named(capsys):
    parts = [listing.listing(part=part) for part in listing.PARTS]
    assert "\n".join(parts) == listing.listing()
    for part, shown in zip(listing.PARTS, parts, strict=True):
        assert cli.main(["--list", part]) == 0
        assert capsys.readouterr().out == f"{shown}\n"
        assert len(shown.splitlines()) > 3, part
    assert cli.main(["--list", "attacs"]) == 2
    said = capsys.readouterr().err
    assert "--list attacs: no such list (did you mean 'attacks'?)" in said
    assert "methods" in said


def test_a_page_is_opened_in_the_browser(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(browser.webbrowser, "open", lambda address: opened.append(address) or True)
    browser.show(tmp_path / "a page.html")
    assert opened == [f"{tmp_path.as_uri()}/a%20page.html"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("why", [browser.webbrowser.Error("none"), OSError("none"), [False]])
def test_without_a_browser_a_sentence_names_the_page(why, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(browser.webbrowser, "open", mock.Mock(side_effect=why))
    browser.show(tmp_path / "index.html")
    assert capsys.readouterr().out == f"--open: there is no browser here; open {tmp_path / 'index.html'} in one\n"


def test_the_threads_of_a_night_are_those_of_the_command(tmp_path):
    file = tmp_path / "matrix.yaml"
    file.write_text(json.dumps({"matrix": {"method": ["fedavg", "fedrand"], "threads": 3}}))

    def threads(*words):
        night = nightly.read(["--nightly", str(file), *words], lambda cell: cli.read_command(cell).plan)
        return [cell.plan.threads for cell in night.matrix.cells]

    assert threads() == [3, 3]
    assert threads("--threads", "2") == [2, 2]
    with pytest.raises(InputError, match="--threads"):
        threads("--threads", "0")


@pytest.mark.parametrize("words", ["--audit curves", "--paper secfpp:figure2 --dry-run", "--split nowhere.jsonl"])
def test_flags_that_change_no_result_are_taken_everywhere(words, tmp_path, capsys):
    cli.main([*words.split(), "--out", str(tmp_path / "out"), "--threads", "1", "--quiet", "--no-open", "--debug"])
    said = capsys.readouterr().err
    assert not any(flag in said for flag in ("--threads", "--quiet", "--no-open", "--debug"))


OWNERS = {
    "--rho": "--method fedrand",
    "--no-past": "--method fedrand",
    "--hidden": "--attack shadow",
    "--dtype": "LoRA methods",
    "--rank": "--method dpfpl, fedpgp or LoRA methods",
    "--epsilon": "methods that add noise",
    "--members": "--run",
    "--nonsense": "",
}


def test_whose_a_flag_is():
    assert {flag: owners.owners(flag) for flag in OWNERS} == OWNERS
    for plugin in METHODS.values():
        for name in plugin.params.__dataclass_fields__:
            assert owners.owners(f"--{name.replace('_', '-')}").startswith("--method ")


def test_help_says_on_what_the_flags_depend(capsys):
    assert cli.main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("usage: audit.py [--method NAME] [--attack NAME] [--task NAME] [options] ")
    assert "The flags depend on --method, --attack, --task" in said
