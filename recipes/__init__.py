"""How the embedded models were made: `python -m recipes.clip`, `python -m recipes.vlm`. No wheel holds this folder."""
