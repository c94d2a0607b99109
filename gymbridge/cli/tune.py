"""Measure an env of yours, and print the call that runs a batch of it fastest."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from gymbridge.benchmarking.machine import circumstances, cpus
from gymbridge.benchmarking.rounds import in_short
from gymbridge.cli import CommandError
from gymbridge.cli.env_argument import NamedEnv, add_env_argument, env_called
from gymbridge.cli.env_profile import EnvProfile, profile_of
from gymbridge.cli.option_values import positive_int, positive_seconds
from gymbridge.cli.output import stdout_for_findings_only
from gymbridge.cli.progress import work_progress
from gymbridge.cli.tune_batches import Api, batch_calls
from gymbridge.cli.tune_search import Outcome, best_of, search, times, told

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_arguments", "run"]

_PROFILE_SHARE = 0.08
"""Of the time, for the env alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what it takes."""
    add_env_argument(parser)
    parser.add_argument("-n", "--num-envs", type=positive_int, required=True, metavar="N", help="how many envs")
    parser.add_argument(
        "--api",
        choices=get_args(Api),
        default="native",
        help="what your program is written for: TensorDict batches that step together (native; pools are tried too "
        "where the env's times vary much), gymnasium.vector, or pools only",
    )
    parser.add_argument("--seconds", type=positive_seconds, default=40.0, help="how long it may take, about (40)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Measures, and prints what it has found."""
    with stdout_for_findings_only(arguments.json):
        env, profile, outcomes = _measured(arguments)
    chosen = best_of(outcomes)
    if chosen is None:
        reasons = {outcome.alone.failure: outcome.batch.title for outcome in outcomes if outcome.alone.failure}
        raise CommandError(
            f"{env.name}: no batch of it could be timed: " + "; ".join(f"{e}: {why}" for why, e in reasons.items())
        )
    best, reason = chosen
    about = {"env": env.name, "num_envs": arguments.num_envs, "api": arguments.api, **circumstances()}
    if arguments.json:
        print(json.dumps(_as_json(about, profile, outcomes, best, reason), indent=1))
    else:
        _show(console, about, profile, outcomes, best, reason)
    return 0


def _measured(arguments: argparse.Namespace) -> tuple[NamedEnv, EnvProfile, Sequence[Outcome]]:
    """The env, what it takes alone, and what its batches take."""
    env = env_called(arguments.env)
    warnings.filterwarnings("ignore")  # of envs, which are many here
    cores = cpus()
    with work_progress() as progress:
        begun = time.perf_counter()
        progress.stage(f"timing {env.name} alone", 1)
        try:
            profile = profile_of(env, min(3.0, _PROFILE_SHARE * arguments.seconds))
        except CommandError:
            raise
        except (Exception, SystemExit) as error:
            raise CommandError(f"{env.name}: the env raised {in_short(error)} while it was stepped alone") from error
        batches = batch_calls(env, arguments.num_envs, arguments.api, profile, cores)
        left = max(1.0, arguments.seconds - (time.perf_counter() - begun))
        if any(batch.needs_torch for batch in batches):
            progress.stage("importing torch", 1)
            import gymbridge.async_env_pool  # noqa: F401  # takes seconds, which are none of the batches'
        outcomes = search(batches, left, stage=progress.stage, turn=progress.turn)
    return env, profile, outcomes


# ---------------------------------------------------------------- what is told


def _verdict(outcome: Outcome, best: Outcome, reason: str) -> str:
    """Why a batch was chosen, or why it was not."""
    if outcome.not_tried:
        return f"not tried: {outcome.not_tried}"
    if outcome.us is None:
        return f"failed: {outcome.alone.failure}"
    if outcome is best:
        return reason
    if outcome.final.failure:
        return f"failed: {outcome.final.failure}"
    ratio = times(outcome, best)
    processes = outcome.batch.processes
    if ratio < 1.005 and processes > best.batch.processes:
        return f"no slower, in {processes} process{'es' if processes > 1 else ''}"
    own = told(min(outcome.us, outcome.batch.least_us))
    in_turn = f" ({outcome.batch.in_turn} in turn)" if outcome.batch.in_turn > 1 else ""
    alone = " when each was timed alone" if best.final.rounds and not outcome.final.rounds else ""
    return (
        f"{ratio:.2f} times as long{alone}: {own} of it are the envs' own time{in_turn}, the rest is "
        f"{outcome.batch.overhead}"
    )


def _described(profile: EnvProfile) -> list[str]:
    steps = (
        f"a step takes {told(profile.step_us)} (median {told(profile.step_us_median)}, 99 % below "
        f"{told(profile.step_us_99)}, longest {told(profile.step_us_longest)}; {profile.steps:,} steps)"
    )
    episode = f"every {profile.episode_steps:.0f} steps" if profile.episode_steps else "no episode ended"
    resets = f"a reset takes {told(profile.reset_us)} ({episode}), making it {told(profile.make_us)}"
    kind = f"a {profile.kind} env, {profile.observation_bytes:,} bytes an observation"
    way = "waits" if profile.waits else "computes"
    varying = ", and its times vary much" if profile.varies else ""
    return [kind, steps, resets, f"it {way} most of the time (computes {profile.busy:.0%} of it){varying}"]


def _show(
    console: Console,
    about: dict[str, Any],
    profile: EnvProfile,
    outcomes: Sequence[Outcome],
    best: Outcome,
    reason: str,
) -> None:
    from rich.table import Table
    from rich.text import Text

    from gymbridge.cli.paragraphs import print_paragraph

    print_paragraph(console, Text(about["env"], "bold"))
    for line in _described(profile):
        print_paragraph(console, line, "- ")
    table = Table()
    table.add_column(f"{about['num_envs']} envs", overflow="fold")  # a call is told whole
    table.add_column("a step of all", justify="right")
    table.add_column("why")
    for outcome in sorted(
        outcomes, key=lambda own: (own is not best, own.us is None, not own.final.rounds, own.us or 0.0)
    ):
        style = "bold green" if outcome is best else ""
        figure = "-" if outcome.us is None else told(outcome.us)
        verdict = Text(_verdict(outcome, best, reason))
        table.add_row(Text(outcome.batch.title, style), Text(figure, style), verdict)
    console.print(table)
    versions = ", ".join(f"{what} {about[what]}" for what in ("python", "gymbridge", "gymnasium", "torch"))
    print_paragraph(console, Text(f"{about['date']}, {about['machine']}; {versions}", "dim"))
    console.print(Text(f"\n{best.batch.program}"), soft_wrap=True, end="")


def _as_json(
    about: dict[str, Any], profile: EnvProfile, outcomes: Sequence[Outcome], best: Outcome, reason: str
) -> dict[str, Any]:
    return {
        "about": about,
        "profile": {**asdict(profile), "waits": profile.waits, "varies": profile.varies},
        "candidates": [
            {
                "call": outcome.batch.expression,
                "use": outcome.batch.use,
                "processes": outcome.batch.processes,
                "us_per_step": outcome.us,
                "us_per_step_rounds": outcome.final.rounds or outcome.alone.rounds,
                "least_us": outcome.batch.least_us,
                "start_s": outcome.start_s,
                "verdict": _verdict(outcome, best, reason),
            }
            for outcome in outcomes
        ],
        "call": best.batch.call,
        "program": best.batch.program,
    }
