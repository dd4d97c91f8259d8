"""From data to signals: recipes (ways to train), engines (where it runs), and training that resumes."""
