"""Your own training script: plmia chooses the rows of each model, the script trains and records, plmia scores.

python examples/own_training.py [RUN]
"""

import sys

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import plmia

X, y = load_digits(return_X_y=True)
run = plmia.design(len(X), references=8, folder=sys.argv[1] if sys.argv[1:] else "RUN")

for k in run.missing():  # on a cluster, one job per model: k = int(os.environ["SLURM_ARRAY_TASK_ID"])
    rows = run.members(k)
    model = RandomForestClassifier(random_state=k).fit(X[rows], y[rows])
    run.record(k, probabilities=model.predict_proba(X), labels=y)

print(plmia.score(run))
