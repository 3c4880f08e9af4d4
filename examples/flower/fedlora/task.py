"""The model, a client's records, and its training; nothing here knows of an audit."""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

TARGETS = r".*language_model.*\.(q_proj|v_proj)"  # of the language model alone
BATCH = 4


def load_model(backbone, rank):
    """The frozen model with new adapters, the same ones in every process: B is zero, A is drawn from seed 0."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(backbone, dtype=torch.float32)
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))


def load_records(photos, client):
    lines = Path(photos, "members.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["client"] == client]


def encoded(processor, photos, records):
    """A batch as the model reads it; it learns the texts, not the prompts before them."""
    images = [Image.open(Path(photos, record["image"])).convert("RGB") for record in records]
    prompts = [record["prompt"] for record in records]
    end = processor.tokenizer.eos_token
    whole = [f"{prompt} {record['text']}{end}" for prompt, record in zip(prompts, records, strict=True)]
    batch = processor(text=whole, images=images, padding=True, padding_side="right", return_tensors="pt")
    lengths = [len(ids) for ids in processor(text=prompts, images=images)["input_ids"]]
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for row, length in zip(labels, lengths, strict=True):
        row[:length] = -100
    return {**batch, "labels": labels}


def train(model, backbone, photos, records, epochs, learning_rate, seed):
    """Train the adapters; the mean loss of the last epoch's batches."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # simulated clients share the processors
    processor = AutoProcessor.from_pretrained(backbone)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=learning_rate)
    model.train()
    for _ in range(epochs):
        losses = []
        for chunk in torch.randperm(len(records)).split(BATCH):
            loss = model(**encoded(processor, photos, [records[i] for i in chunk.tolist()])).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return sum(losses) / len(losses)
