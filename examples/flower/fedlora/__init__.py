"""A Flower app that trains LoRA on a vision-language model."""
