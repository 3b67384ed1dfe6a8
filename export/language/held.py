"""How much held-out text the forms of a language model are measured on."""

from dataclasses import dataclass

from millrace.export.language.token_pieces import TokenPieces

FLOAT = 4


@dataclass(frozen=True)
class Held:
    """How much held-out text forms are measured on.

    Attributes:
        tokens: that count, at most.
        kept_bytes: of transformers' probabilities, which are kept on disk while forms are measured:
            the tokens are as many as fit.
        prompts: continued greedily.
        new_tokens: of each answer.
    """

    tokens: int = 16_384
    kept_bytes: int = 2 * 2**30
    prompts: int = 64
    new_tokens: int = 32

    def of(self, pieces: TokenPieces, vocab_size: int, context: int) -> TokenPieces:
        """Return the text that is measured, cut to a context.

        Args:
            pieces: held-out text.
            vocab_size: tokens that a model chooses from.
            context: tokens that it sees at a time.
        """
        return pieces.first(min(self.tokens, self.kept_bytes // (FLOAT * vocab_size)), context)
