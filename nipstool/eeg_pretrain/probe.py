"""A linear probe on frozen embeddings: logistic regression, fitted to the subjects of all folds but one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

STEPS, TOLERANCE = 50, 1e-8
PENALTY = 1.0  # of the squared weights of standardised features, against the summed log loss


@dataclass(frozen=True)
class Probe:
    """p(x) = sigma(weights . (x - mean) / std + bias)."""

    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    bias: float

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """(N,) probabilities of rows (N, d)."""
        return sigmoid((X - self.mean) / self.std @ self.weights + self.bias)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def fit(X: np.ndarray, y: np.ndarray, penalty: float = PENALTY) -> Probe | None:
    """L2-penalised maximum likelihood with both classes weighted alike (Newton); None where a class is absent.

    Args:
        X: (N, d) features.
        y: (N,) bool.
        penalty: lambda in sum_i w_i log-loss_i + lambda / 2 |weights|^2; the bias is free.
    """
    y = np.asarray(y, bool)
    if y.all() or not y.any():
        return None
    X = np.asarray(X, np.float64)
    mean, std = X.mean(0), X.std(0) + 1e-9
    Z = np.column_stack([(X - mean) / std, np.ones(len(X))])
    balance = np.where(y, 0.5 / y.mean(), 0.5 / (1.0 - y.mean()))
    ridge = np.diag(np.append(np.full(X.shape[1], penalty), 1e-9))
    beta = np.zeros(Z.shape[1])
    for _ in range(STEPS):
        p = sigmoid(Z @ beta)
        gradient = Z.T @ (balance * (p - y)) + ridge @ beta
        hessian = (Z * (balance * np.maximum(p * (1.0 - p), 1e-6))[:, None]).T @ Z + ridge
        step = np.linalg.solve(hessian, gradient)
        step *= min(1.0, 10.0 / max(1e-12, float(np.abs(step).max())))  # a first step may be far too long
        beta = beta - step
        if float(np.abs(step).max()) < TOLERANCE:
            break
    return Probe(mean, std, beta[:-1], float(beta[-1]))


def cross_fitted(X: Sequence[np.ndarray], y: Sequence[np.ndarray], folds: Sequence[int]) -> list[np.ndarray]:
    """Probabilities of each recording's windows by the probe of the other folds; 0 where there is none."""
    found = [np.zeros(len(rows)) for rows in X]
    for fold in sorted(set(folds)):
        train = [n for n, other in enumerate(folds) if other != fold]
        probe = (
            fit(np.concatenate([X[n] for n in train]), np.concatenate([y[n] for n in train])) if train else None
        )
        for n in range(len(X)):
            if folds[n] == fold and probe is not None and len(X[n]):
                found[n] = probe(X[n])
    return found
