"""Audit a regressor, and a training function of your own with its own signal: no classes are needed."""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.tree import DecisionTreeRegressor

import plmia

X, y = load_diabetes(return_X_y=True)
tree = plmia.audit(DecisionTreeRegressor(max_depth=6), X, y, references=16, folder="tree", progress=False)
print(f"tree: {tree.result.verdict.text}")


def train(X, y, seed):
    return np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y)[0]


def signal(model, X, y):
    return -np.abs(X @ model[:-1] + model[-1] - y)  # larger for members


linear = plmia.audit((train, signal), X, y, references=16, folder="linear", progress=False)
print(f"linear model: {linear.result.verdict.text}")
