from typing import Any


def TokensPrompt(**columns: Any) -> dict[str, Any]:  # noqa: N802
    return columns


TextPrompt = TokensPrompt
