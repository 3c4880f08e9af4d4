"""Training of the embedded models: `python -m recipes.clip`, `python -m recipes.vlm`. This folder is in no wheel."""
