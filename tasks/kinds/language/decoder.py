"""What a pipeline file says of a language model, as the values that training takes."""

from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.config.language_spec import LoraSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.pretrained import resolve_pretrained
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.models.language.recipe import DecoderSpec, Lora, Recipe


def decoder_of(pipeline: Pipeline, tokenizer: LanguageTokenizer) -> DecoderSpec:
    """Return the decoder to train.

    Raises:
        InputError: there is no such folder.
    """
    model = pipeline.model
    return DecoderSpec(
        vocab_size=tokenizer.vocab_size,
        context=model.tokenizer.max_tokens,
        params=model.params,
        pretrained=_located(model.pretrained, pipeline.folder),
        revision=model.revision,
        lora=_lora(model.lora),
        eos_token_id=tokenizer.end,
        pad_token_id=tokenizer.padding,
        turn_end_ids=tokenizer.turn_ends,
    )


def recipe_of(spec: TrainingSpec) -> Recipe:
    """Return how it is trained.

    Raises:
        InputError: its precision is none that decoders are trained in.
    """
    if spec.precision == "fp16":
        raise InputError(
            "a causal_lm is not trained in fp16",
            seen="training.precision: fp16",
            valid="auto, bf16, fp32",
            hint="bf16 has the range of fp32, and needs no scaling",
        )
    return Recipe(
        epochs=spec.epochs,
        max_steps=spec.max_steps,
        batch_size=spec.batch_size,
        gradient_accumulation_steps=spec.gradient_accumulation_steps,
        gradient_checkpointing=spec.gradient_checkpointing,
        learning_rate=spec.learning_rate,
        optimizer=spec.optimizer,
        weight_decay=spec.weight_decay,
        warmup_ratio=spec.warmup_ratio,
        max_grad_norm=spec.max_grad_norm,
        parallel=spec.parallel,
        precision=spec.precision,
        checkpoint_steps=spec.checkpoint_steps,
        log_steps=spec.log_steps,
        num_workers=spec.num_workers,
        seed=spec.seed,
        max_failures=spec.max_failures,
    )


def _lora(spec: LoraSpec | None) -> Lora | None:
    if spec is None:
        return None
    targets = None if isinstance(spec.target_modules, str) else spec.target_modules
    return Lora(spec.r, spec.lora_alpha, spec.lora_dropout, targets)


def _located(pretrained: str | None, folder: Path) -> str | None:
    return None if pretrained is None else resolve_pretrained(pretrained, folder)
