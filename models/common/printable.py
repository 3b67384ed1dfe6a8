"""What is said of a text from elsewhere: no password of an address, no control characters.

Names, tags and error messages come from whoever may write to a registry, a table or a server. Raw,
they could colour or rewrite a terminal, forge lines of a log, or carry the password of a database
to whoever reads it. Errors, tables and log records all pass through `safe`.
"""

import logging
import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""C0 and C1 controls, line separators, what turns the direction of a text or is not seen, halves of
pairs. A line feed and a tab stay: messages have them.
"""
_USER_PART = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#'\"<>]*)@")
"""RFC 3986's userinfo, up to the last @ before the path, since people do not escape one."""
_UNESCAPED = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)"
    r"(?P<user>[^\s/:@]*:(?!\d+(?:[/?#]|$))[^\s'\"<>]*)@"
)
"""A password with a slash in it: RFC 3986 does not allow that, and SQLAlchemy reads it."""
_QUERY = re.compile(
    r"(?P<name>[?&;](?:password|passwd|pwd|token|sslpassword|user_token)=)[^&\s'\"<>]*", re.I
)
HIDDEN = "***"


def safe(text: str) -> str:
    """Return a text as it may be printed, logged and kept."""
    return printable(redacted(text))


def redacted(text: str) -> str:
    """Return a text in which no address has its user part, nor a password among its parameters."""
    if "://" not in text and "=" not in text:
        return text
    for pattern in (_USER_PART, _UNESCAPED):
        text = pattern.sub(lambda found: f"{found['scheme']}{HIDDEN}@", text)
    return _QUERY.sub(lambda found: f"{found['name']}{HIDDEN}", text)


def has_user_part(address: str) -> bool:
    """Return whether an address holds a user or a password."""
    return redacted(address) != address


def printable(text: str) -> str:
    r"""Return a text with control characters written as `\x1b` or `\u202e`."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escaped, text)


def _escaped(found: "re.Match[str]") -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def one_line(text: str) -> str:
    """Return a name as a part of a line: line feeds are escaped as well."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def guard_logging() -> None:
    """Let every log record of this process pass through `safe`, whoever makes it.

    Prefect, MLflow and SQLAlchemy log addresses and other people's texts themselves; a filter of a
    logger does not see what its children log, and a filter of a handler not what others handle.
    """
    before = logging.getLogRecordFactory()
    if getattr(before, "passes_through_safe", False):
        return

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        record = before(*args, **kwargs)
        try:
            text = record.getMessage()
        except Exception:  # logging tells a message that does not fit its arguments itself
            return record
        if (cleaned := safe(text)) != text:
            record.msg, record.args = cleaned, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = safe(logging.Formatter().formatException(record.exc_info))
        return record

    factory.passes_through_safe = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
