"""Audit a convolutional network of your own on the digits of scikit-learn."""

from sklearn.datasets import load_digits
from torch import nn

import plmia


class Net(nn.Sequential):
    """Two layers; plmia builds a new one for each model."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))


X, y = load_digits(return_X_y=True)
recipe = plmia.Torch(Net, epochs=30, lr=3e-3)
audit = plmia.audit(recipe, X.reshape(-1, 8, 8), y, references=8, folder="cnn")
print(audit.result.verdict.text)
