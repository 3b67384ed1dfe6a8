"""What a request asks for, the same for completions and for chats."""

from dataclasses import dataclass

from millrace.models.common.generation import MAX_TOKENS
from millrace.serving.triton.language.stream_request import Messages, Sampling


@dataclass(frozen=True)
class Ask:
    """A request, checked.

    Attributes:
        model: its name.
        prompts: the texts to go on with, or the messages of one chat.
        sampling: how each answer is made; `n` answers to each prompt.
        stream: whether the answers are sent as they come.
        include_usage: whether the end of a stream says how many tokens there were.
        is_chat: which of OpenAI's two forms the answer has.
    """

    model: str
    prompts: tuple[str | Messages, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    is_chat: bool

    @property
    def n(self) -> int:
        """Answers to each prompt."""
        return self.sampling.n or 1

    @property
    def output_tokens(self) -> int:
        """Tokens that all answers together may have."""
        return len(self.prompts) * self.n * (self.sampling.max_tokens or MAX_TOKENS)

    @property
    def prompt_field(self) -> str:
        """The request's field that holds the prompt."""
        return "messages" if self.is_chat else "prompt"
