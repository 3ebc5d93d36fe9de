"""Renders chat templates with Jinja2, set up as the library transformers does, and prints what templates.json holds.

    python3 render_templates.py conversations.json PATCHED_TREE/models/templates > templates.json

It needs the package Jinja2, and is no part of any test: it says what templates mean independently of llama.cpp.
"""

import hashlib
import json
import pathlib
import sys

import jinja2
import jinja2.nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """The tag that marks what the assistant said; it changes no text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(source, conversation):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: "{" + format + "}"
    variables = {
        "messages": conversation["messages"], "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
        **conversation["arguments"],
    }
    if "tools" in conversation:
        variables["tools"] = conversation["tools"]
    return environment.from_string(source).render(**variables)


def main():
    conversations = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rendered = {}
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja")):
        rendered[path.stem] = {}
        for name, conversation in conversations.items():
            try:
                text = render(path.read_text(), conversation)
                rendered[path.stem][name] = hashlib.sha256(text.encode()).hexdigest()[:16]
                if len(sys.argv) > 3:
                    out = pathlib.Path(sys.argv[3])
                    out.mkdir(exist_ok=True)
                    (out / f"{path.stem}.{name}").write_text(text)
            except Exception as error:
                rendered[path.stem][name] = "error: " + str(error).split("\n")[0][:100]
    json.dump(rendered, sys.stdout, indent=1, ensure_ascii=False)
    print()


main()
