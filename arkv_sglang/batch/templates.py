"""Jinja2 templates of prompts: the defaults, how they are checked, and how they are compiled."""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined, Template, meta

SINGLE = "Summarize the following document in at most five sentences.\n\n{{ text }}"
MAP = """\
The following is one part of a longer document. Summarize this part in a few sentences. Keep the \
names, figures and findings that a summary of the whole document needs.

{{ text }}"""
COMBINE = """\
The following are summaries of consecutive parts of one document. Combine them into one summary of \
the whole document in at most five sentences.

{{ text }}"""
REFINE = """\
The following are a summary of a document so far and the next part of it. Write one summary of \
both in at most five sentences.

Summary so far:
{{ summary }}

Next part:
{{ text }}"""


def variables_of(template: str) -> set[str]:
    """What it expects to be given. Raises TemplateSyntaxError."""
    return meta.find_undeclared_variables(Environment(autoescape=False).parse(template))


def compiled(template: str) -> Template:
    environment = Environment(
        autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.from_string(template)
