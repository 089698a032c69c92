"""The options of commands that tell somebody."""

from __future__ import annotations

import argparse

from ....core.ranges import checked
from ....core.receiver import deliver_to


def add_alerts(chosen: argparse.ArgumentParser) -> None:
    """`alert`: a target, None for nobody. `alert_goodput`: a share, None for the usual limit."""
    chosen.add_argument("--alert", type=checked(_target), metavar="TARGET",
        help="tell TARGET when the run gets into trouble and when it is out of it: an http(s) "
        "address, which gets JSON by POST, or a command, which gets it on standard "
        "input")  # fmt: skip
    chosen.add_argument("--alert-goodput", type=checked(_share), metavar="SHARE",
        help="with --alert: trouble is, too, when less than this share of an hour becomes "
        "kept steps (0.5)")  # fmt: skip


def check_alerts(chosen: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Ends the command where one option needs another."""
    if given.alert_goodput is not None and given.alert is None:
        chosen.error("--alert-goodput needs --alert, which says whom to tell")


def _target(text: str) -> str:
    deliver_to(text)
    return text


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"must be a share from 0 to 1, not {text!r}")
    return share
