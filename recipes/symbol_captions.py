"""Captions of the pictures on which the embedded CLIP models are pre-trained, and the tokenizer of their words."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Rng
from recipes.symbol_pictures import COLOURS, DAMAGES, GROUNDS, STYLES, Drawing
from recipes.symbols import FIRST, FONTS, SECOND_WORDS, SYMBOLS, Language, Symbol, pick

CONTEXT = 32  # tokens
TEMPLATES = (
    "{}", "a {}", "the {}", "a drawing of the {}", "a drawing of a {}", "a picture of the {}", "an image of the {}",
    "this is the {}",
    "a sketch of the {}", "here is a {}", "a photo of a {}", "a photo of the {}", "a good photo of a {}",
    "one {} in the picture",
)  # fmt: skip
GENERAL_WORDS = (
    "a an the of on in with and . , photo picture image drawing sketch this is here one it shows good bad close up my "
    "single some small large tiny big style font type background color dark light bright by from domain handwritten "
    "symbol on paper screen wall sign neon chalk dots print outline relief glowing dotted old new real blackboard "
    "computer what which are you"
).split()


def vocabulary(stage: int = 2) -> list[str]:
    """The tokens in the order of their ids: padding, start, unknown, all words, single characters and their
    continuations; the end token is last. The second stage's words come right before the end token, so that the others
    keep their ids."""
    words = [*GENERAL_WORDS, *COLOURS, *STYLES, *GROUNDS, *DAMAGES, *" ".join(FONTS.values()).split()]
    words += " ".join(" ".join(nouns) for nouns in FIRST.nouns.values()).split()
    words += [symbol.name for symbol in SYMBOLS]
    characters = "abcdefghijklmnopqrstuvwxyz0123456789"
    more = [*characters, *"-'?!:", *(f"##{c}" for c in characters)]
    new = SECOND_WORDS if stage == 2 else ()
    return list(dict.fromkeys(["<pad>", "<start>", "<unk>", *words, *more, *new, "<end>"]))


def build_tokenizer(stage: int = 2) -> PreTrainedTokenizerFast:
    """A lower-case tokenizer: one token per known word, otherwise one per character; start and end tokens are added."""
    words = vocabulary(stage)
    ids = {word: i for i, word in enumerate(words)}
    # byte-pair encoding without pairs: a word is looked up whole, else spelt
    model = models.BPE(ids, [], unk_token="<unk>", continuing_subword_prefix="##", ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z]+|[0-9]|[^\sa-z0-9]"), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", ids["<start>"]), ("<end>", ids["<end>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<start>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=CONTEXT,
    )


Claim = tuple[str, frozenset[str]]  # a symbol's name, and the kinds that the caption can mean


def naming_caption(drawing: Drawing, rng: Rng, language: Language = FIRST) -> tuple[str, Claim]:
    """A caption that names the symbol, and what it claims: (the name, kinds of symbols that it may mean)."""
    named, kinds = _named(drawing.symbol, rng, language)
    if drawing.adjectives and rng.random() < 0.25:
        named = f"{pick(drawing.adjectives, rng)} {named}"
    return _sentence(named, rng), (drawing.symbol.name, kinds)


def describing_caption(drawing: Drawing, rng: Rng, language: Language = FIRST) -> str:
    adjectives = [word for word in dict.fromkeys(drawing.adjectives) if rng.random() < 0.8]
    if rng.random() < 0.6:
        adjectives.append(drawing.colour)
    text = _sentence(" ".join([*adjectives, _named(drawing.symbol, rng, language)[0]]), rng).rstrip(" .")
    if rng.random() < 0.5:
        pattern = drawing.pattern if drawing.pattern != "plain" else pick(("", "plain"), rng)
        text += f" on a {drawing.ground} {pattern} background"
    if rng.random() < 0.03:  # a meaningless name, so that spelt words are ignored
        text += " by " + "".join(pick("abcdefghijklmnopqrstuvwxyz", rng) for _ in range(int(rng.integers(3, 8))))
    return text


def _named(symbol: Symbol, rng: Rng, language: Language) -> tuple[str, frozenset[str]]:
    name = drawings.character(symbol.name) if symbol.kind == "digit" and rng.random() < 0.12 else symbol.name
    if rng.random() < language.plain:
        return name, language.kinds("")
    noun = pick(language.nouns[symbol.kind], rng)
    return (f"{name} {noun}" if symbol.kind in ("sign", "shape") else f"{noun} {name}"), language.kinds(noun)


def _sentence(named: str, rng: Rng) -> str:
    return pick(TEMPLATES, rng).format(named) + pick(("", "."), rng)
