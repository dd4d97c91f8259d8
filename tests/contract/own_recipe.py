"""The user's own training code, as a file for the recipe `function`: nearest class means."""

import numpy as np


def train(X, y, seed):
    """Class means, moved a little by the seed."""
    means = np.stack([X[y == c].mean(axis=0) for c in np.unique(y)])
    return means + np.random.default_rng(seed).normal(0, 0.01, means.shape)


def query(model, X, y):
    """Logits: negative squared distances."""
    return -((X[:, None] - model[None]) ** 2).reshape(len(X), len(model), -1).sum(axis=2)
