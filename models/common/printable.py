"""Makes foreign text safe to print: removes passwords in addresses and control characters.

Anyone who may write to a registry, a table or a server chooses names, tags and error messages. Raw,
they could colour or rewrite a terminal, forge lines of a log, or show the password of a database.
Errors, tables and log records all pass through `safe`.
"""

import logging
import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""C0 and C1 controls, line separators, bidirectional and invisible characters, lone surrogates.

Line feeds and tabs stay: messages have them.
"""
_USER_PART = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#'\"<>]*)@")
"""RFC 3986's userinfo, up to the last @ before the path, because people do not escape an @."""
_UNESCAPED = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)"
    r"(?P<user>[^\s/:@]*:(?!\d+(?:[/?#]|$))[^\s'\"<>]*)@"
)
"""A password with a slash: RFC 3986 does not allow it, but SQLAlchemy accepts it."""
_QUERY = re.compile(
    r"(?P<name>[?&;](?:password|passwd|pwd|token|sslpassword|user_token)=)[^&\s'\"<>]*", re.I
)
HIDDEN = "***"


def safe(text: str) -> str:
    """Return a text that is safe to print, log and store."""
    return printable(redact(text))


def redact(text: str) -> str:
    """Return a text without the user parts and the password parameters of its addresses."""
    if "://" not in text and "=" not in text:
        return text
    for pattern in (_USER_PART, _UNESCAPED):
        text = pattern.sub(lambda found: f"{found['scheme']}{HIDDEN}@", text)
    return _QUERY.sub(lambda found: f"{found['name']}{HIDDEN}", text)


def has_user_part(address: str) -> bool:
    """Return whether an address holds a user or a password."""
    return redact(address) != address


def printable(text: str) -> str:
    r"""Return a text with control characters written as `\x1b` or `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text
    )


def one_line(text: str) -> str:
    """Return a text that is safe to print within a line: line feeds and tabs are escaped too."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def guard_logging() -> None:
    """Pass every log record of this process through `safe`, whichever library makes it.

    Prefect, MLflow and SQLAlchemy log addresses and foreign text themselves. Logging filters are
    not enough: a logger's filter does not see the records of child loggers, and a handler's filter
    does not see records that only other handlers get.
    """
    before = logging.getLogRecordFactory()
    if getattr(before, "passes_through_safe", False):
        return

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        record = before(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:  # logging itself reports a message that does not fit its arguments
            return record
        if (cleaned := safe(text)) != text:
            record.msg, record.args = cleaned, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = safe(logging.Formatter().formatException(record.exc_info))
        return record

    factory.passes_through_safe = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
