"""Flask and its server Werkzeug, with a hint where they are not installed."""

try:
    import flask
    import werkzeug.exceptions
    import werkzeug.serving
except ModuleNotFoundError as error:
    raise ValueError("the demo needs Flask: pip install 'xlme_jax[demo]'") from error

__all__ = ("flask", "werkzeug")
