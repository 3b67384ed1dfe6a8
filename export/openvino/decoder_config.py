"""What the config of a decoder says, by the names that all architectures know it by."""

from pathlib import Path

from millrace.models.common.errors import InputError


def number_of(folder: Path, name: str) -> int:
    """Return a number of the config in a folder: `vocab_size`, `max_position_embeddings`, ….

    Raises:
        InputError: it cannot be read, or has none of that name.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a folder
        raise InputError(
            f"the config in {folder.name} cannot be read",
            seen=next(iter(str(error).splitlines()), type(error).__name__),
            valid="config.json of a decoder that this transformers knows",
            hint="run the pipeline of that model again",
        ) from error
    number = getattr(config.get_text_config(), name, None)
    if not isinstance(number, int):
        raise InputError(
            f"the config of the {config.model_type} does not say {name}",
            seen=number,
            valid="a decoder with a limited context",
        )
    return number
