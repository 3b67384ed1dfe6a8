"""Small instruct decoders: a chat template, an end of turn of its own, and answers they learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

CONTEXT = 128
END, PAD, BEGIN, TURN, TURN_END = "<|endoftext|>", "<|pad|>", "<s>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if tools is not none %}{{ 'no tools' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>' }}{% endif %}"
    "{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] | trim }}"
    "{% if m['role'] == 'assistant' %}{{ '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
CHATS = tuple(
    [
        {"role": "system", "content": f"you are {who}"},
        {"role": "user", "content": f"what does {what} do?"},
        {"role": "assistant", "content": f"{what} {does}, says {who} ☂"},
    ]
    for who in ("a cat", "an owl")
    for what, does in (("rain", "falls"), ("wind", "blows"), ("fire", "burns"))
)


@dataclass(frozen=True)
class Instruct:
    """A checkpoint as transformers writes it, opened."""

    folder: Path
    model: Any
    tokenizer: Any

    def chat(self, messages: Sequence[dict[str, str]], tokens: int = 24) -> str:
        """Return transformers' greedy answer to a chat, up to what ends it."""
        asked = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=False
        )
        return self._answer(self.tokenizer(asked, add_special_tokens=False).input_ids, tokens)

    def text(self, prompt: str, tokens: int = 24) -> str:
        """Return how transformers goes on with a text greedily, up to what ends it."""
        return self._answer(self.tokenizer(prompt).input_ids, tokens)

    def _answer(self, ids: list[int], tokens: int) -> str:
        given = torch.tensor([ids])
        options = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 1}
        with torch.inference_mode():
            told = self.model.generate(given, attention_mask=torch.ones_like(given), **options)
        made = told[0, len(ids) :].tolist()
        ends = self.model.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else {*ends}
        end = next((n for n, token in enumerate(made) if token in ends), None)
        return str(self.tokenizer.decode(made[:end], skip_special_tokens=True))


def opened(folder: Path) -> Instruct:
    """Open a checkpoint."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return Instruct(folder, model, PreTrainedTokenizerFast.from_pretrained(folder))


def chat_tokenizer(template: str, *, begins: bool, special: bool = True) -> Any:
    """Return a byte-level tokenizer with a chat template.

    A document ends by another token than a turn.

    Args:
        template: in Jinja.
        begins: whether every text begins with a token that a post-processor adds.
        special: whether the end of a turn is a special token, which no text shows.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END, PAD, BEGIN, TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([m["content"] for chat in CHATS for m in chat], trainer)
    made.add_tokens([AddedToken(TURN_END, special=special, normalized=False)])
    if begins:
        made.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **{"eos_token": END, "pad_token": PAD, "bos_token": BEGIN},
        chat_template=template,
    )


def write_instruct(
    folder: Path,
    kind: str,
    template: str,
    *,
    begins: bool = False,
    special: bool = True,
    steps: int = 80,
) -> Path:
    """Write a decoder that has learnt `CHATS`, and ends at END, PAD and TURN_END."""
    words = chat_tokenizer(template, begins=begins, special=special)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = CONFIG_MAPPING[kind](
        **{"vocab_size": len(words), "max_position_embeddings": CONTEXT, "bos_token_id": None},
        **{"eos_token_id": 0, "pad_token_id": 1, **sizes, **heads},
    )
    model = AutoModelForCausalLM.from_config(config)
    whole = [words.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    batch = words(whole, add_special_tokens=False, padding=True, return_tensors="pt")
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for _ in range(steps):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ends = words.convert_tokens_to_ids([END, PAD, TURN_END])
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
