"""Flask and its server Werkzeug, with a hint where they are not installed."""

from xlme_jax.validation import extras

try:
    import flask
    import werkzeug.exceptions
    import werkzeug.serving
except ModuleNotFoundError as error:
    raise ValueError(extras.missing("the demo", "flask")) from error

__all__ = ("flask", "werkzeug")
