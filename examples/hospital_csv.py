"""A hospital's CSV with text, missing values and several rows per patient, and a pipeline that selects columns."""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import plmia

rng = np.random.default_rng(0)  # made-up stays of 600 patients: put your own file in their place
stays = pd.DataFrame({"patient": np.sort(rng.integers(600, size=1500)), "glucose": rng.normal(100, 15, 1500)})
stays["age"] = rng.integers(20, 95, 600)[stays["patient"]]
stays["ward"] = rng.choice(["surgery", "cardiology", "neurology", None], 1500)
stays["readmitted"] = np.where(stays["age"] + 20 * rng.normal(size=1500) > 60, "yes", "no")
stays.to_csv("patients.csv", index=False)

columns = (OneHotEncoder(handle_unknown="ignore"), ["ward"]), (SimpleImputer(), ["age", "glucose"])
pipeline = make_pipeline(make_column_transformer(*columns), RandomForestClassifier(50))
stays = pd.read_csv("patients.csv")
print(plmia.audit(pipeline, stays, "readmitted", groups="patient", references=8, folder="patients-audit"))
