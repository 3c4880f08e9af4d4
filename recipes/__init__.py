"""Training of the built-in models: `python -m recipes.clip`, `python -m recipes.vlm`. This folder is in no wheel."""
