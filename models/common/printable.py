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
_SECRET = re.compile(
    r"(?P<name>[?&;](?:password|passwd|pwd|token|sslpassword|user_token)=)[^&\s'\"<>]*", re.I
)
_SIGNED = re.compile(
    r"(?P<name>[?&][\w.-]*(?:sig|signature|token|credential|secret|access_?key(?:_?id)?|api_?key)=)"
    r"[^&\s'\"<>]*",
    re.I,
)
"""Parameters of a signed address, of which a message may show only the end, such as a file name."""
_QUERY = re.compile(
    r"(?P<address>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#'\"<>]*\?)(?P<query>[^\s#'\"<>]*)"
)
_SENTENCE = "),.:;]}"
"""What follows an address in a sentence."""
_HARMLESS = {"endpoint_override", "mail", "mode", "region", "scheme", "sslmode", "timeout", "v"}
"""Parameters whose values are told; of all others nobody knows whether they are secret."""
HIDDEN = "***"


def safe(text: str) -> str:
    """Return a text that is safe to print, log and store."""
    return printable(redact(text))


def redact(text: str) -> str:
    """Return a text without the user parts of its addresses and the values of their queries."""
    if "://" not in text and "=" not in text:
        return text
    text = _redact_secrets(text)
    text = _SIGNED.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    return _QUERY.sub(lambda found: found["address"] + _redact_query(found["query"]), text)


def has_user_part(address: str) -> bool:
    """Return whether an address holds a user or a password."""
    return _redact_secrets(address) != address


def _redact_secrets(text: str) -> str:
    """Return a text without the user parts and the password parameters of its addresses."""
    for pattern in (_USER_PART, _UNESCAPED):
        text = pattern.sub(lambda found: f"{found['scheme']}{HIDDEN}@", text)
    return _SECRET.sub(lambda found: f"{found['name']}{HIDDEN}", text)


def _redact_query(query: str) -> str:
    """Return a query with the names of its parameters only."""
    return "&".join(map(_redact_parameter, query.split("&")))


def _redact_parameter(parameter: str) -> str:
    name, _, rest = parameter.partition("=")
    value = rest.rstrip(_SENTENCE)
    is_told = name.lower() in _HARMLESS and not {"?", "="} & set(value)
    if not value or is_told or "/" in name:  # a ? before a folder's name is one of a glob
        return parameter
    return f"{name}={HIDDEN}{rest[len(value) :]}"


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
