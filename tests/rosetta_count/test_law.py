"""Laws over sizes: the fits against peers and known truths, the tables they are read from."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from nipstool.kit.errors import DataError, UsageError
from nipstool.rosetta_count.law import compare, fit_law, fit_line, quasi_poisson, theil_sen
from nipstool.rosetta_count.series import fit_rows, read_rows_of, verdict

SIZES = np.array([32, 64, 128, 256, 512, 1024, 2048.0])


def family(random: np.random.Generator, alpha: float, dispersion: float = 20.0) -> list[np.ndarray]:
    """Overdispersed counts (negative binomial) of three pairs a size."""
    means = 0.6 * SIZES**alpha
    return [random.negative_binomial(dispersion, dispersion / (dispersion + mean), size=3) for mean in means]


def test_the_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(1000):
        alpha = random.uniform(0.6, 1.1)
        means = [max(one.mean(), 0.3) for one in family(random, alpha)]
        line = fit_line(np.log(SIZES), np.log(means), seed=seed)
        covered += line.low <= alpha <= line.high
    assert 930 <= covered <= 970


def test_an_exact_law_is_found_exactly():
    law = fit_law("x", SIZES.tolist(), [[3 * x**0.75] for x in SIZES])
    assert law.line.alpha == pytest.approx(0.75)
    assert law.line.low == pytest.approx(0.75)
    assert law.theil_sen == pytest.approx(0.75)
    assert law.poisson is not None
    assert law.poisson.alpha == pytest.approx(0.75)
    assert law.line.p_sublinear < 0.01


def test_quasi_poisson_is_that_of_statsmodels():
    api = pytest.importorskip("statsmodels.api")
    counts = np.concatenate(family(np.random.default_rng(1), 0.8))
    counts[0] = 0
    x = np.repeat(SIZES, 3)
    ours = quasi_poisson(x, counts)
    theirs = api.GLM(counts, api.add_constant(np.log(x)), family=api.families.Poisson()).fit(scale="X2")
    assert ours is not None
    assert [ours.log_a, ours.alpha] == pytest.approx(theirs.params, rel=1e-6)
    assert ours.error == pytest.approx(theirs.bse[1], rel=1e-6)
    assert ours.dispersion == pytest.approx(theirs.scale, rel=1e-6)


def test_one_wild_point_moves_the_line_but_not_the_median_slope():
    counts = 2 * SIZES**0.9
    counts[3] *= 20
    assert theil_sen(np.log(SIZES), np.log(counts)) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("linear", 0.3 * SIZES), ("power", 2 * SIZES**0.6), ("saturating", 90 * SIZES / (SIZES + 200))],
)
def test_the_law_that_made_the_counts_fits_best(name: str, counts: np.ndarray):
    noise = np.exp(np.random.default_rng(2).normal(0, 0.01, len(SIZES)))
    found = compare(SIZES, counts * noise)
    assert min(found, key=lambda law: found[law]) == name


def test_zeros_are_left_out_of_the_line_and_counted():
    law = fit_law("x", SIZES.tolist(), [[0.0], [0.0], *[[x] for x in SIZES[2:]]])
    assert law.line.dropped == 2
    assert law.line.alpha == pytest.approx(1)
    with pytest.raises(DataError, match="2 sizes have a count above 0"):
        fit_law("x", SIZES.tolist(), [[1.0], [2.0], *[[0.0]] * 5])


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (
            3,
            "AICc needs 5 sizes or more for the power law, 4 .* the linear law, 5 .* the saturating law; no",
        ),
        (
            4,
            r"AICc needs 5 .* the power law, 5 .* the saturating law; no law is .* best \(linear -?[\d.]+\)$",
        ),
        (5, r"AICc \(lower is better\): power .*, linear .*, saturating .*: power$"),
    ],
)
def test_no_law_wins_where_others_have_no_aicc(tmp_path: Path, sizes: int, told: str):
    rows = [
        f"{x},{x**0.6 * (1 + 0.01 * (-1) ** at)},,a," for at, x in enumerate((16, 64, 256, 1024, 4096)[:sizes])
    ]
    (line,) = [line for line in verdict(fit_rows(read_rows_of([table(tmp_path, rows)]))) if "AICc" in line]
    assert re.match(told, line), line
    assert "inf" not in line


def table(folder: Path, rows: list[str]) -> str:
    path = folder / "counts.csv"
    path.write_text("\n".join(["size,count,raw,pair,control", *rows]) + "\n")
    return str(path)


def test_controls_are_fitted_beside_and_compared_in_words(tmp_path: Path):
    rows = [f"{x},{x**0.8},{x**0.9},a-b," for x in (16, 32, 64, 128)]
    rows += [f"{x},0,{x**0.85},a-b,permuted" for x in (16, 32, 64, 128)]
    fit = fit_rows(read_rows_of([table(tmp_path, rows)]))
    alphas = {law.name: round(law.line.alpha, 6) for law in fit.laws}
    assert alphas == {"observed": 0.8, "observed (raw)": 0.9, "permuted (raw)": 0.85}
    assert any("permuted: 0 sizes have a count above 0" in told for told in fit.missing)
    assert any("1 of 1 are of the same size" in line for line in verdict(fit))
    assert any("no evidence" in line for line in verdict(fit))
    assert fit_rows(read_rows_of([table(tmp_path, rows)]), count="raw").laws[0].line.alpha == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["16,x,1,a,"], "line 2: count is 'x'"),
        (["16,-1,1,a,"], "line 2: count is '-1'"),
        (["0,1,1,a,"], "line 2: size is '0'"),
        (["16,nan,1,a,"], "line 2: count is 'nan'"),
        ([], "has no rows"),
        (["16,1,1,a,", "32,2,2,a,"], "a law needs 3"),
        (["16,1,1,a,permuted"], "no observed counts"),
    ],
)
def test_tables_that_cannot_be_fitted(tmp_path: Path, rows: list[str], told: str):
    with pytest.raises(DataError, match=told):
        fit_rows(read_rows_of([table(tmp_path, rows)]))


def test_folders_and_tables_are_not_mixed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "summary.json").write_text(json.dumps({"models": [{"model": "a"}], "pairs": []}))
    with pytest.raises(UsageError, match="both"):
        read_rows_of([str(tmp_path / "a"), table(tmp_path, ["16,1,1,a,"])])
    with pytest.raises(DataError, match="its summary is not that of a count"):
        read_rows_of([str(tmp_path / "a")])


def test_counts_too_far_apart_for_one_law_have_no_poisson_fit() -> None:
    assert quasi_poisson(np.array([16.0, 32.0, 64.0]), np.array([2.0**62, 12.0, 20.0])) is None
