"""Polls, leases, loss and fencing between a driver and its hosts, by the event loop's own clock."""

import asyncio
from pathlib import Path

import pytest

from harbortrainer.bundled.hosts.messages import Job
from harbortrainer.bundled.hosts.node import FIRST_POLL_SEC, Node
from harbortrainer.bundled.hosts.remote import POLL_SEC, SLACK_SEC
from harbortrainer.errors import EnvironmentFault
from harbortrainer.learning.trajectory import Outcome
from harbortrainer.rollout.gates import TrialState
from harbortrainer.rollout.venue import TrialCancelled
from tests.support.fakes import chat_template
from tests.support.hosts_rig import FACTS, SILENCE, Client, Rig, Venue, now, rig_of, virtually


@virtually
async def test_a_trial_comes_back_with_its_folder_and_is_counted_here(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        rig.sampler.publish(rig.client, 7)
        trajectory = await rig.hosts[0].run(rig.request())
        assert trajectory.reward == 1.0 and [turn.weights_version for turn in trajectory.turns] == [7, 7, 7]
        assert trajectory.trial_dir == str(tmp_path / "trials" / "s000000-p00-g00")
        assert (Path(trajectory.trial_dir) / "result.json").read_text() == "{}"
        assert rig.sampler.totals["requests"] == 3 and rig.sampler.totals["sampled_tokens"] == 6
        assert rig.sampler.totals["in_flight_seconds"] > 0.0
        assert rig.hosts[0].outages == 0


@virtually
async def test_a_trial_waits_for_the_weights_of_its_batch(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        rig.sampler.publish(rig.client, 1)
        rig.gates.weights.clear()
        run = asyncio.create_task(rig.hosts[0].run(rig.request()))
        await asyncio.sleep(5)
        newer = Client()
        rig.sampler.publish(newer, 2)
        rig.gates.weights.set()
        assert [turn.weights_version for turn in (await run).turns] == [2, 2, 2]
        assert rig.client.asked == []


@virtually
async def test_a_silent_host_is_lost_and_its_trials_are_no_ones_fault(tmp_path: Path) -> None:
    async with rig_of(tmp_path, turns=100) as rig:
        rig.sampler.publish(rig.client, 1)
        host = rig.hosts[0]
        run = asyncio.create_task(host.run(rig.request()))
        await asyncio.sleep(3.5)
        cut, before = now(), host.outages
        rig.wire.cut()
        trajectory = await run
        assert SILENCE - 1.1 <= now() - cut <= SILENCE + 0.1
        assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
        assert trajectory.detail == "host h0 was lost: no answer for 8 s"
        assert host.outages == before + 1 and rig.fleet.hosts == []


@virtually
async def test_a_cut_host_stops_sampling_before_the_driver_may_train(tmp_path: Path) -> None:
    """It first stops sampling, then ends its trials, then its process; the fence opens after all of that."""
    async with rig_of(tmp_path, turns=100) as rig:
        rig.sampler.publish(rig.client, 1)
        run = asyncio.create_task(rig.hosts[0].run(rig.request()))
        await asyncio.sleep(3.5)
        rig.wire.cut()
        cut = now()
        await run
        assert rig.client.asked[-1] >= now() - 1.0, "cut off, it goes on for now"
        await rig.sampler.drain()
        trained = now()
        assert rig.left and rig.client.asked[-1] + rig.client.seconds < rig.left[0] + 1.0 < trained
        assert trained - cut <= SILENCE + SLACK_SEC + POLL_SEC
        await asyncio.sleep(100)
        assert rig.client.asked[-1] < trained and Venue.made.removed == 1


@virtually
async def test_the_update_waits_for_requests_on_a_living_host(tmp_path: Path) -> None:
    async with rig_of(tmp_path, turns=1) as rig:
        rig.client.seconds = 20.0
        rig.sampler.publish(rig.client, 1)
        run = asyncio.create_task(rig.hosts[0].run(rig.request()))
        await asyncio.sleep(1)
        await rig.sampler.drain()
        assert now() >= 20.0
        await run


@virtually
async def test_a_late_poll_does_not_renew_the_lease(tmp_path: Path) -> None:
    """Sent before a cut and delivered after it, when the driver has given the host up."""
    async with rig_of(tmp_path, turns=100) as rig:
        await asyncio.sleep(3)
        sent = now()
        rig.wire.cut()
        await asyncio.sleep(SILENCE - 1)
        await rig.node.poll(sent)
        await asyncio.sleep(2)
        assert rig.left == [pytest.approx(sent + SILENCE, abs=0.1)]


@virtually
async def test_a_node_that_nobody_polls_ends(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    job = Job(rig.config, "run", Venue(), lambda _: chat_template(), 4, False, SILENCE)
    node = Node(job, lambda: rig.left.append(now()), lambda: FACTS, lambda _: None)
    await node.start()
    await asyncio.sleep(FIRST_POLL_SEC - 1)
    assert rig.left == []
    await asyncio.sleep(2)
    assert rig.left == [pytest.approx(FIRST_POLL_SEC)]


@virtually
async def test_a_dead_process_is_noticed_at_once_and_a_new_host_takes_its_place(tmp_path: Path) -> None:
    async with rig_of(tmp_path, turns=5) as rig:
        rig.sampler.publish(rig.client, 1)
        first = rig.hosts[0]
        run = asyncio.create_task(first.run(rig.request()))
        await asyncio.sleep(1.5)
        rig.wire.killed = True
        died = now()
        assert (await run).outcome is Outcome.INFRASTRUCTURE_ERROR and now() - died <= 1.0
        await rig.node.stop()
        second = await rig.join()
        assert rig.fleet.hosts == [second]
        again = await second.run(rig.request(1))
        assert again.reward == 1.0 and {turn.weights_version for turn in again.turns} == {1}


@virtually
async def test_a_trial_given_to_a_host_that_was_just_lost_costs_no_attempt(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        host = rig.hosts[0]
        host.lose("test")
        before = host.outages
        assert (await host.run(rig.request())).outcome is Outcome.INFRASTRUCTURE_ERROR
        assert host.outages == before + 1


@virtually
async def test_a_cancelled_trial_returns_what_was_paid_for(tmp_path: Path) -> None:
    async with rig_of(tmp_path, turns=100) as rig:
        rig.sampler.publish(rig.client, 1)
        run = asyncio.create_task(rig.hosts[0].run(rig.request()))
        await asyncio.sleep(4.5)
        run.cancel()
        with pytest.raises(TrialCancelled) as cancelled:
            await run
        assert len(cancelled.value.turns) == 4 and Venue.made.removed == 1


@virtually
async def test_a_host_whose_daemon_stays_away_is_lost_and_the_run_goes_on(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        rig.sampler.publish(rig.client, 1)
        Venue.made.fault = EnvironmentFault("Docker did not answer")
        trajectory = await rig.hosts[0].run(rig.request())
        assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR
        assert "Docker did not answer" in trajectory.detail and rig.fleet.hosts == []


@virtually
async def test_lost_weights_on_a_host_are_lost_here(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        there = Client()
        rig.client.open = lambda config: there  # as another machine has a client of its own
        rig.sampler.publish(rig.client, 1)
        await asyncio.sleep(2)
        assert not rig.client.lost.is_set()
        there.lost.set()
        await asyncio.sleep(2)
        assert rig.client.lost.is_set()


@virtually
async def test_states_of_running_trials_are_shown_and_tokens_counted(tmp_path: Path) -> None:
    async with rig_of(tmp_path, turns=4) as rig:
        rig.sampler.publish(rig.client, 1)
        run = asyncio.create_task(rig.hosts[0].run(rig.request()))
        await asyncio.sleep(0.1)
        rig.node._seen.moved("s000000-p00-g00", TrialState.SAMPLING)
        rig.node._seen.sampled(5)
        await asyncio.sleep(2)
        assert rig.observer.seen == [("s000000-p00-g00", TrialState.SAMPLING)] and rig.observer.tokens == 5
        await run
        rig.node._seen.moved("s000000-p00-g00", TrialState.VERIFYING)
        await asyncio.sleep(2)
        assert len(rig.observer.seen) == 1, "it has ended"
