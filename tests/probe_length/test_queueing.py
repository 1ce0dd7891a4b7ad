"""Queues beside closed forms of queueing theory, and orders against each other."""

import numpy as np
import pytest

from nipstool.kit.errors import DataError, UsageError
from nipstool.probe_length.queueing import (
    first_come,
    in_order,
    pollaczek_khinchine,
    preemptive,
    shortest_first,
)
from nipstool.probe_length.schedule import FCFS, SJF, Lengths, Service, read_lengths, regimes, schedule


def poisson_arrivals(
    count: int, service: np.ndarray, load: float, slots: int, random: np.random.Generator
) -> np.ndarray:
    """Arrival times at a load: the share of the slots' time that the jobs take."""
    rate = load * slots / service.mean()
    return np.cumsum(random.exponential(1 / rate, count))


def test_two_million_jobs_wait_as_theory_says() -> None:
    """M/G/1, log-normal service: E[S] = e^(1/2), E[S^2] = e^2; SJF by an integral over the law itself."""
    random = np.random.default_rng(0)
    jobs, load = 2_000_000, 0.7
    service = np.exp(random.standard_normal(jobs))
    arrival = np.cumsum(random.exponential(np.exp(0.5) / load, jobs))
    rate = load / np.exp(0.5)
    fcfs = (first_come(arrival, service) - arrival - service).mean()
    assert fcfs == pytest.approx(rate * np.exp(2) / (2 * (1 - load)), rel=0.03)
    u = (np.arange(200_000) + 0.5) / 200_000
    from scipy.stats import norm

    q = norm.ppf(u)
    upto = load * norm.cdf(q - 1)  # rate * E[S; S <= x] of a log-normal law
    theory = rate * np.exp(2) / 2 * np.mean(1 / (1 - upto) ** 2)
    assert (in_order(arrival, service, service) - arrival - service).mean() == pytest.approx(theory, rel=0.03)


def test_formulas_agree_with_hand_made_ones() -> None:
    """Constant service (M/D/1): half of M/M/1's wait; all jobs alike, so the order does not matter."""
    constant = np.full(10, 2.0)
    assert pollaczek_khinchine(constant, 0.5) == pytest.approx(0.5 * 2 / (2 * 0.5))
    assert shortest_first(constant, 0.5) == pytest.approx(pollaczek_khinchine(constant, 0.5))


def test_lindley_is_the_simulation_in_order_of_arrival() -> None:
    random = np.random.default_rng(1)
    service = random.exponential(1.0, 500)
    arrival = poisson_arrivals(500, service, 0.8, 1, random)
    simulated = in_order(arrival, service, np.arange(500.0))
    np.testing.assert_allclose(first_come(arrival, service), simulated, rtol=1e-12)


def test_a_queue_by_hand() -> None:
    """Three jobs, one slot: the short one overtakes the one that waits, and with preemption the running one."""
    arrival, service = np.array([0.0, 1.0, 2.0]), np.array([10.0, 5.0, 1.0])
    np.testing.assert_allclose(in_order(arrival, service, service), [10, 16, 11])
    np.testing.assert_allclose(preemptive(arrival, service, service), [16, 7, 3])
    np.testing.assert_allclose(first_come(arrival, service, 2), [10, 6, 7])


@pytest.mark.parametrize("slots", [1, 3])
def test_no_order_makes_or_loses_work(slots: int) -> None:
    random = np.random.default_rng(2)
    service = random.lognormal(0, 1, 400)
    arrival = poisson_arrivals(400, service, 0.9, slots, random)
    for finish in (in_order(arrival, service, service, slots), preemptive(arrival, service, service, slots)):
        assert (finish >= arrival + service - 1e-9).all()
    if slots == 1:  # one slot that is never idle while jobs wait is free at the same times under every order
        ends = [x.max() for x in (first_come(arrival, service), preemptive(arrival, service, service))]
        assert ends[0] == pytest.approx(ends[1])


def test_useless_predictions_gain_nothing_and_good_ones_do() -> None:
    random = np.random.default_rng(3)
    tokens = np.round(random.lognormal(5, 1, 1000)) + 1
    good = schedule(Lengths(tokens, tokens, None), Service(), [0.8], [1], jobs=20_000)
    useless = schedule(Lengths(tokens, random.permutation(tokens), None), Service(), [0.8], [1], jobs=20_000)
    gain = {x.order: x.of_mean for x in good.latencies}
    none = {x.order: x.of_mean for x in useless.latencies}
    assert gain[FCFS] == none[FCFS] == 1
    assert gain[SJF] < 0.65
    assert none[SJF] > 0.9
    assert "no gain" in useless.verdict[0] or "harms" in useless.verdict[0]
    assert "helps" in good.verdict[0]


def test_real_arrivals_are_used_as_they_are(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"n_response": 100, "p50": 3, "arrival": 5}\n{"n_response": 10, "predicted": 2, "arrival": 0}\n'
    )
    lengths = read_lengths(path)
    assert lengths.arrival is not None
    assert lengths.arrival.tolist() == [0, 5]
    assert lengths.tokens.tolist() == [10, 100]
    found = schedule(lengths, Service(0, 1000, 0), [0.5], [1])
    assert {x.mean for x in found.latencies if x.order == FCFS} == {(10 + 105) / 2}
    assert found.theory == ()


def test_bad_rows_and_options_are_named(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n_response": 100, "predicted": 3}\n{"n_response": -1, "predicted": 3}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: n_response is -1"):
        read_lengths(path)
    path.write_text('{"n_response": 100, "predicted": 3, "arrival": 1}\n{"n_response": 1, "predicted": 3}\n')
    with pytest.raises(DataError, match="some records have an arrival"):
        read_lengths(path)
    lacking = "no n_response; expected the number of tokens that the answer had, beside p50 (predict passes it on)"
    lines = {
        '{"p50": 3}': lacking,
        '{"n_response": 3}': "no predicted or p50; expected the predicted number of tokens",
        '{"n_response": 3, "p50": 3, "arrival": "noon"}': "arrival is 'noon'; expected seconds",
        '{"n_response": "3", "p50": 3}': "n_response is '3'; expected a number of tokens",
    }
    for line, words in lines.items():
        path.write_text(f"{line}\n")
        with pytest.raises(DataError) as caught:
            read_lengths(path)
        assert str(caught.value) == f"{path}:1: {words}"
    for load, slots in (("1.0", "1"), ("0.5", "0"), ("x", "1"), ("0.5", "1.5")):
        with pytest.raises(UsageError):
            regimes(load, slots)
