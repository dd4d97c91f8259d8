"""The boundary: signals of trained models, the store that keeps them, and importers of other tools' folders."""
