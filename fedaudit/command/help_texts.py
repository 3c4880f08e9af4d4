"""Texts that `--help` shows of the whole command, and its way to break lines. Imports nothing heavy."""

from __future__ import annotations

import argparse

from fedaudit.command.window import hanging

ABOUT = (
    "Train a federated method, attack what each party saw, and report how much leaked. The flags depend on --method, "
    "--attack, --task and --audit: give these beside --help to see theirs."
)
EXAMPLES = """\
examples:
  audit.py --method fedrand --attack maxrenyi        train FedRand, attack it, write a report
  audit.py --method fedavg,fedper,fedpara,fedrand    four methods, compared in one report
  audit.py --method fedper,fedper:shared_layers=4    variants of a method in one report
  audit.py --method fedrand --no-past --rho 0.3      an ablation of FedRand's Table 3
  audit.py --method fedavg,dpfedavg --epsilon 10,1   DP-SGD on adapters, beside the same without noise
  audit.py --method dpfpl --epsilon 0.1              private prompts on a frozen CLIP: utility, what noise proves
  audit.py --method dpfpl --attack shadow            50 shadow models per target client, with and without noise
  audit.py --method fedotp --attack all --targets 4  every attack on prompts, under every threat model
  audit.py --method dpfpl --attack lira,shadow --canaries 100
  audit.py --method promptfl,fedotp,fedpgp,dpfpl --epsilon none,0.4,0.1 --seeds 3
  audit.py --preset private-demo                     noise from none to so much that the prompt is of no use
  audit.py --preset memorising                       prompts that leak: few pictures, many rounds
  audit.py --method dpfpl --epsilon none,0.4,0.1 --attack loss --audit curves   leakage against utility
  audit.py --audit curves --out fedaudit-runs        the same over all runs on disk; trains nothing
  audit.py --audit cost --out fedaudit-runs          bytes, rounds, seconds, memory of these, at equal utility
  audit.py --compare fedaudit-runs/reports/A fedaudit-runs/reports/B     two reports on one page, and what differs
  audit.py --paper dpfpl:figure3                     a paper's table or figure, ours beside the print; list, or all
  audit.py --task vqa                                questions instead of captions
  audit.py --task coco --data-root DIR --backbone llava-hf/llava-1.5-7b-hf --dtype bfloat16 --preset paper
  audit.py --split records.jsonl --out my-run        coins that say who is a member, before a training elsewhere
  audit.py --run FOLDER                              audit a training that was done elsewhere (docs/guides/own-runs.md)
  audit.py --method fedrand --fail-if "auroc.low > 0.6"   exit code 1 when that much leakage is shown
  audit.py --task images --data-root DIR --backbone ViT-B-16 --weights FILE --check   what fits, what is missing
  audit.py --config run.yaml --dry-run               what a configuration would run, how long, how much disk
  audit.py --nightly matrix.yaml                     a matrix of audits: gates, and what changed since earlier nights
  audit.py --new attack surprise --plugins FOLDER    a small attack of your own with its test (docs/guides/plugins.md)
  audit.py check FOLDER                              plugins of your own, held against the contracts of ours
  audit.py --list                                    methods, attacks, audits and tasks
  audit.py --list attacks                            one of the lists
"""


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose lines end between words: names with hyphens can be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return hanging("", " ".join(text.split()), width)
