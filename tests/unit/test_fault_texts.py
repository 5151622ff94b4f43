"""
Texts of exceptions that aren't ours, where bytes of peers and values of secrets pass: none is shown, logged or recorded.

An exception of a library quotes the bytes that it is about: h11 the header line, UnicodeDecodeError the byte, json and
msgpack what they didn't expect. Errors of leeward's own have texts of ours.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import leeward

ROOT = Path(leeward.__file__).parent

#: Where bytes of sandboxes, of hosts and of models' clients are read.
PLACES = ("egress", "apps/approvals", "apps/audit", "apps/faces", "apps/integrations", "wire", "daemon/pool/broker.py",
          "daemon/pool/egress_record.py", "daemon/pool/seals.py", "daemon/pool/ways_out.py",
          "client/egress_asks.py", "client/fetching.py")

#: Functions that may show the text of an exception that isn't ours, and why.
ALLOWED = {
    "apps/approvals/operator_file.py:parse_policy": "where the operator's own file is no TOML, for the operator",
    "apps/approvals/carrying/settings.py:ServiceSettings._read": "where the service's own file is no JSON, for the operator",
    "apps/approvals/queue/store.py:RequestStore._told": "what SQLite says of a damaged file or a full disk, without values",
    "apps/integrations/agent_framework.py:LeewardShell.run": "what the caller itself has passed, in its own process",
    "apps/integrations/dspy.py:LeewardInterpreter.execute": "what the caller itself has passed, in its own process",
    "apps/integrations/dspy.py:LeewardInterpreter.start": "what the caller itself has passed, in its own process",
    "apps/integrations/harbor.py:LeewardHarborEnvironment.exec": "what the caller itself has passed, in its own process",
    "apps/integrations/harbor.py:LeewardHarborEnvironment.start": "what the caller itself has passed, in its own process",
    "apps/integrations/jupyter.py:main": "what the caller itself has passed, in its own process",
    "apps/integrations/mini_swe_agent.py:LeewardEnvironment.execute": "what the caller itself has passed, in its own process",
    "apps/integrations/nemo_gym.py:LeewardProvider.exec": "what the caller itself has passed, in its own process",
    "apps/integrations/nemo_gym.py:LeewardProvider.create": "what the caller itself has passed, in its own process",
    "apps/integrations/openai_agents.py:LeewardSandboxSession._exec_internal": "what the caller itself has passed",
    "apps/integrations/openai_agents.py:LeewardSandboxSession._prepare_backend_workspace": "the client's own words",
    "apps/integrations/openai_agents.py:_writes": "what the caller itself has passed, in its own process",
    "apps/integrations/verifiers.py:_told": "what the caller itself has passed, in its own process",
    "client/fetching.py:fetch_fields": "what the caller itself has passed, in its own process",
    "egress/faults.py:of_connection": "OpenSSL's reason is looked up in a table",
    "egress/fetch.py:_why": "of a PeerError, which is ours",
    "wire/function_frames.py:pack": "what the caller itself has passed, in its own process",
}


@cache
def own_errors() -> frozenset[str]:
    """Return the names of leeward's exceptions."""
    def name(of: ast.expr) -> str:
        return of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""

    bases = {node.name: set(map(name, node.bases)) for path in ROOT.rglob("*.py")
             for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)}
    python = {each for each, found in vars(builtins).items() if isinstance(found, type) and issubclass(found, BaseException)}
    known = set(python)
    while more := {each for each, of in bases.items() if of & known} - known:
        known |= more
    return frozenset(known - python)


def foreign(kinds: ast.expr | None) -> bool:
    """Whether a clause catches, or an annotation names, an exception that isn't ours."""
    names = {node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(kinds or ast.Name("Exception"))
             if isinstance(node, (ast.Name, ast.Attribute))}
    return any(name.endswith(("Error", "Exception", "Failure")) for name in names - own_errors())


def shows(node: ast.AST, name: str) -> bool:
    """Whether *node* makes a text of the exception *name*."""
    def it(each: ast.AST) -> bool:
        return isinstance(each, ast.Name) and each.id == name

    match node:
        case ast.FormattedValue(value=value):
            return it(value)
        case ast.Call(func=ast.Name(id="str" | "repr" | "format" | "ascii" | "print"), args=args):
            return any(map(it, args))
        case ast.Call(func=ast.Attribute(attr="format" | "format_exception" | "exception"), args=args):
            return any(map(it, args))
        case ast.BinOp(op=ast.Mod(), right=right):
            return any(map(it, ast.walk(right)))
        case ast.Attribute(value=value, attr="args" | "reason" | "verify_message" | "msg" | "doc" | "object"):
            return it(value)
    return False


def found(path: Path) -> Iterator[str]:
    """The functions of a file that make a text of an exception that isn't ours, each with the line."""
    def look(node: ast.AST, inside: str) -> Iterator[str]:
        names = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = f"{inside}.{node.name}" if inside else node.name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [each.arg for each in node.args.args if each.annotation is not None and foreign(each.annotation)]
        if isinstance(node, ast.ExceptHandler) and node.name and foreign(node.type):
            names = [node.name]
        for name in names:
            if any(shows(each, name) for each in ast.walk(node)):
                yield inside
        for child in ast.iter_child_nodes(node):
            yield from look(child, inside)

    yield from look(ast.parse(path.read_bytes()), "")


def everywhere() -> set[str]:
    files = {path for place in PLACES for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))}
    return {f"{path.relative_to(ROOT)}:{function}" for path in files for function in found(path)}


def test_no_text_of_a_librarys_exception_is_shown() -> None:
    """Write a sentence instead; `egress.faults` has those of the broker. ALLOWED is for texts that no peer can choose."""
    assert everywhere() == ALLOWED.keys()


def test_such_texts_are_found(tmp_path: Path) -> None:
    code = tmp_path / "x.py"
    for text in ("str(error)", "f'{error}'", "f'{error!r:.80}'", "repr(error)", "'%s' % error", "'{}'.format(error)",
                 "error.args", "log.exception(error)", "traceback.format_exception(error)", "error.reason"):
        for kind in ("ValueError", "Exception", "h11.RemoteProtocolError", "(PeerError, OSError)", "UnicodeDecodeError"):
            code.write_text(f"def f():\n    try:\n        g()\n    except {kind} as error:\n        return {text}\n")
            assert ["f"] == list(found(code)), (kind, text)
        code.write_text(f"def f(error: OSError) -> str:\n    return {text}\n")
        assert ["f"] == list(found(code))
        code.write_text(f"def f():\n    try:\n        g()\n    except (PeerError, InvalidHost) as error:\n"
                        f"        return {text}\n")
        assert [] == list(found(code))
