"""How good an attack is, and how sure: metrics, intervals, decisions, exposed records, diagnostics."""
