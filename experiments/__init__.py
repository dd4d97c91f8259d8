"""The paper's tables and figures, one small script each; `plmia reproduce` runs them."""
