"""Audits a model that exists already, here one from R, from the CSV of probabilities that write.csv wrote."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

import plmia

patients = load_breast_cancer(as_frame=True).frame.replace({"target": {0: "malignant", 1: "benign"}})
patients["split"] = np.where(np.random.default_rng(0).permutation(len(patients)) < 400, "train", "test")
X, y = patients.drop(columns=["target", "split"]), patients["target"]

# Stands for two lines of R: model <- randomForest(target ~ ., data = train)
#                            write.csv(predict(model, patients, type = "prob"), "probabilities.csv")
train = patients["split"] == "train"
model = RandomForestClassifier(random_state=0).fit(X[train], y[train])
probabilities = pd.DataFrame(model.predict_proba(X), columns=model.classes_, index=range(1, len(X) + 1))
probabilities.to_csv("probabilities.csv")

recipe = RandomForestClassifier()  # trained like the model
audit = plmia.audit(recipe, X, y, target="probabilities.csv", members=train, references=16, folder="audit")
print(audit.result.verdict.text)
