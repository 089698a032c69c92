"""A simulated run: healthy, or with one plant that costs a given part of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from my_utils.analysis.verdict.run_data import RunData

from . import meetings, work
from .meetings import Timeline, Topology
from .plants import PLANTS, Planted, Stage
from .work import STAGES, OwnWork

Matrix = npt.NDArray[np.float64]

RANKS_A_HOST = {1: 1, 2: 1, 4: 2, 8: 4}  # 8 where there are more
HEALTHY_LOSS = 0.03
"""What the noise of a healthy run costs at most. The recorded noise is made smaller until it does:
among 1,000 ranks there is always one in the worst step that was recorded, which no run of 1,000
ranks would call healthy."""
CORRECTIONS = 2  # of the size of a plant, after the first run with it
RSS_BYTES = 6e9
ALIGNED_NS, UNALIGNED_NS = 20_000, 50_000_000  # how far clocks are apart


@dataclass(frozen=True)
class Scenario:
    """What is simulated. plant: a key of PLANTS, None for a healthy run. loss: the part of the
    run's time that the plant costs. recorded: whether the run recorded where ranks meet."""

    ranks: int
    steps: int
    topology: Topology = "ddp"
    plant: str | None = None
    loss: float = 0.0
    seed: int = 0
    recorded: bool = True


@dataclass
class Simulated:
    """run: what is judged. planted: the truth, None for a healthy run. healthy_ns, step_ns: how
    long each step took of the slowest rank without the plant and with it."""

    run: RunData
    planted: Planted | None
    healthy_ns: Matrix
    step_ns: Matrix
    bytes_a_step: float = 0.0


@dataclass
class _Draws:
    """All that is drawn for a scenario; the plant does not change it."""

    own: OwnWork
    amplitude: float
    hosts: list[str]
    topology: Topology
    seed: int

    def timeline(self, amplitude: float | None = None) -> Timeline:
        size = self.amplitude if amplitude is None else amplitude
        random = np.random.default_rng(self.seed)
        return meetings.timeline(self.own.total_ns(size), self.topology, random)

    def slowest_ns(self, amplitude: float | None = None) -> Matrix:
        return _slowest_ns(self.timeline(amplitude))


def _slowest_ns(line: Timeline) -> Matrix:
    """Of each step, of the rank that is slowest over the run."""
    _, step_ns = meetings.step_times(line)
    slowest: Matrix = step_ns[step_ns.sum(axis=1).argmax()]
    return slowest


def simulate(scenario: Scenario) -> Simulated:
    """The same scenario gives the same run; plants of one seed are laid on the same healthy run."""
    seeds = np.random.SeedSequence([scenario.seed, scenario.ranks]).spawn(3)
    draws = _draw(scenario, np.random.default_rng(seeds[0]))
    healthy_ns = draws.slowest_ns()
    planted, size_ns = None, 0.0
    if scenario.plant is not None:
        random = np.random.default_rng([*seeds[1].generate_state(2), _number(scenario.plant)])
        planted = PLANTS[scenario.plant](Stage(draws.own, draws.hosts, random))
        size_ns = _lay(draws, planted, scenario.loss, float(healthy_ns.mean()))
    line = draws.timeline()
    run = _as_run(scenario, draws, line, np.random.default_rng(seeds[2]))
    grows = RSS_BYTES * scenario.loss / scenario.steps if planted and planted.grows else 0.0
    _add_counters(run, planted, size_ns, grows, np.random.default_rng(seeds[2]))
    return Simulated(run, planted, healthy_ns, _slowest_ns(line), grows)


def _number(name: str) -> int:
    return zlib.crc32(name.encode())


def _draw(scenario: Scenario, random: np.random.Generator) -> _Draws:
    own = work.draw(random, scenario.ranks, scenario.steps)
    hosts = _hosts(scenario)
    draws = _Draws(own, 1.0, hosts, scenario.topology, scenario.seed)
    quiet = draws.slowest_ns(0.0).mean()
    lost = draws.slowest_ns(1.0).mean() / quiet - 1
    # What is lost goes with the noise, nearly in proportion.
    return replace(draws, amplitude=float(min(1.0, HEALTHY_LOSS / max(lost, 1e-9))))


def _hosts(scenario: Scenario) -> list[str]:
    """The host of each rank; two groups have the same number of ranks on each."""
    ranks, size = scenario.ranks, RANKS_A_HOST.get(scenario.ranks, 8)
    if scenario.topology == "two_groups":
        half = ranks // 2
        return [f"node{rank % half // max(1, size // 2)}" for rank in range(ranks)]
    return [f"node{rank // size}" for rank in range(ranks)]


def _lay(draws: _Draws, planted: Planted, loss: float, healthy_ns: float) -> float:
    """Adds the pattern, so large that the run loses that part of its time; returns its size."""
    if planted.grows:
        return 0.0
    wanted = healthy_ns * loss / (1 - loss)
    size = wanted
    for _ in range(CORRECTIONS + 1):
        draws.own.extra_ns = size * planted.pattern
        costs = float(draws.slowest_ns().mean()) - healthy_ns
        if abs(costs - wanted) < 0.005 * wanted:
            break
        size *= wanted / max(costs, 0.1 * wanted)
    else:
        draws.own.extra_ns = size * planted.pattern
    return size


def _as_run(
    scenario: Scenario, draws: _Draws, line: Timeline, random: np.random.Generator
) -> RunData:
    ranks, steps = scenario.ranks, scenario.steps
    begins, step_ns = meetings.step_times(line)
    aligned = random.random() < 0.5
    offsets = (ALIGNED_NS if aligned else UNALIGNED_NS) * random.standard_normal(ranks)
    ran = np.flatnonzero(~np.isnan(line.begins).all(axis=(0, 1)))
    points = meetings.sync_points(scenario.topology, ranks)
    return RunData(
        ranks=np.arange(ranks),
        hosts=draws.hosts,
        world_size=ranks,
        steps=np.arange(steps),
        stages=[STAGES[at] for at in ran],
        begins=line.begins[:, :, ran] + offsets[:, None, None],
        ends=line.ends[:, :, ran] + offsets[:, None, None],
        totals=line.totals[:, :, ran],
        step_begins=begins + offsets[:, None],
        step_ns=step_ns,
        sync_points=points if scenario.recorded else None,
        peers=meetings.peers(scenario.topology, ranks) if scenario.recorded else None,
        clock_error_ns=4.0 * ALIGNED_NS if aligned else None,
        ended=[True] * ranks,
    )


def _add_counters(
    run: RunData, planted: Planted | None, size_ns: float, grows: float,
    random: np.random.Generator,
) -> None:  # fmt: skip
    """Memory that rises while the run warms up and then jitters by pages; batches of 32 samples."""
    shape = run.step_ns.shape
    steps = np.arange(shape[1])
    rss = RSS_BYTES * (1 - 0.2 * np.exp(-steps / 3)) + 2e6 * random.standard_normal(shape)
    tokens = 16384 * (1 + 0.01 * random.standard_normal(shape))
    if planted is not None and planted.tokens is not None:
        tokens *= np.maximum(1 + size_ns * planted.tokens, 0.1)
    if planted is not None and planted.grows:
        rss[list(planted.ranks)] += grows * steps
    run.counters = {
        "rss_bytes": rss // 4096 * 4096,
        "samples": np.full(shape, 32.0),
        "tokens": tokens.round(),
    }
