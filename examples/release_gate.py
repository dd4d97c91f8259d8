"""Gate a release in CI: audit the way a model is trained, and write a test report that the pipeline shows."""

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import plmia

X, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
audit = plmia.audit(model, X, y, references=16, folder="release-1.0", progress=False)
decision = plmia.gate(audit, max_tpr=0.30, at_fpr=0.05)
Path("gate.xml").write_bytes(decision.to_junit())
print(decision)
sys.exit(0 if decision.passed else 3)
