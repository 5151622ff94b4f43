"""Shims of version managers, and the programs that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from leeward.apps.agents.programs import find
from leeward.errors import RequestRejected

SHIM = """#!/usr/bin/env bash
set -e
program="${{0##*/}}"
export {root}="{folder}"
exec "{folder}/libexec/{name}" exec "$program" "$@"
"""


def program(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder as pyenv has it, with a shim of `tool` and three versions."""
    made = tmp_path / ".pyenv"
    program(made / "shims/tool", SHIM.format(root="PYENV_ROOT", folder=made, name="pyenv"))
    for version in ("3.9.18", "3.12.1", "3.12.10"):
        program(made / f"versions/{version}/bin/tool")
    program(made / "versions/3.8.1/bin/other")
    return made


def found(root: Path, **environ: str) -> tuple[str, ...]:
    what = find("tool", {"PATH": f"{root}/shims:{root.parent}/host:/usr/bin:/bin", **environ})
    return () if what is None else what.argv


def test_a_shim_is_the_program_of_the_version_that_its_manager_would_choose(root: Path) -> None:
    (root / "version").write_text("3.9.18\n3.12.1\n")
    assert (f"{root}/versions/3.9.18/bin/tool",) == found(root)
    assert (f"{root}/versions/3.12.1/bin/tool",) == found(root, PYENV_VERSION="3.12.1")
    assert (f"{root}/versions/3.12.10/bin/tool",) == found(root, PYENV_VERSION="3.12")
    assert (f"{root}/versions/3.12.1/bin/tool",) == found(root, PYENV_VERSION="3.8.1:3.12.1")


def test_a_shim_of_the_system_is_what_comes_later_in_path(root: Path) -> None:
    assert () == found(root)
    host = program(root.parent / "host/tool")
    assert (str(host),) == found(root)
    assert (str(host),) == found(root, PYENV_VERSION="system")


@pytest.mark.parametrize("version", ["3.8.1", "2.7", "../versions/3.12.1", "/", "."])
def test_a_shim_without_a_program_is_refused_with_the_versions_that_have_it(root: Path, version: str) -> None:
    with pytest.raises(RequestRejected, match=r"these have: 3\.12\.1, 3\.12\.10, 3\.9\.18.*PYENV_VERSION"):
        found(root, PYENV_VERSION=version)


def test_a_projects_file_chooses_no_version(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (root / "version").write_text("3.9.18\n")
    (tmp_path / ".python-version").write_text("3.12.1\n")
    monkeypatch.chdir(tmp_path)
    assert (f"{root}/versions/3.9.18/bin/tool",) == found(root)


def test_a_shim_of_node_is_the_interpreter_of_a_script(tmp_path: Path) -> None:
    folder = tmp_path / ".nodenv"
    program(folder / "shims/node", SHIM.format(root="NODENV_ROOT", folder=folder, name="nodenv"))
    node = program(folder / "versions/22.1.0/bin/node")
    (folder / "version").write_text("22.1.0")
    script = program(tmp_path / "bin/agent", "#!/usr/bin/env node\n")
    what = find("agent", {"PATH": f"{tmp_path}/bin:{folder}/shims"})
    assert what is not None
    assert (str(node), str(script)) == what.argv


def test_shims_of_other_managers_are_refused_with_what_to_do(tmp_path: Path) -> None:
    program(tmp_path / ".asdf/shims/tool", '#!/usr/bin/env bash\nexec /opt/asdf/bin/asdf exec "tool" "$@"\n')
    with pytest.raises(RequestRejected, match="asdf which"):
        find("tool", {"PATH": f"{tmp_path}/.asdf/shims"})
    for name, which in (("mise", "mise which"), ("volta-shim", "volta which")):
        program(tmp_path / f"real/{name}")
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").symlink_to(tmp_path / f"real/{name}")
        with pytest.raises(RequestRejected, match=which):
            find("tool", {"PATH": f"{tmp_path}/{name}"})
        assert find(name, {"PATH": f"{tmp_path}/real"}) is not None  # itself


def asdf(tmp_path: Path) -> tuple[str, Path]:
    program(tmp_path / ".asdf/shims/tool", "#!/usr/bin/env bash\n# asdf-plugin: kit 1.2.0\n# asdf-plugin: kit 2.0.0\n"
                                           'exec asdf exec "tool" "$@"\n')
    for version in ("1.2.0", "2.0.0"):
        program(tmp_path / f".asdf/installs/kit/{version}/bin/tool")
    program(tmp_path / "outside/bin/tool")
    return f"{tmp_path}/.asdf/shims", tmp_path / ".tool-versions"


def mise(tmp_path: Path) -> tuple[str, Path]:
    data = tmp_path / "data/mise"
    for version in ("1.2.0", "2.0.0"):
        program(data / f"installs/npm-scope-kit/{version}/bin/tool")
    program(tmp_path / "real/mise")
    (data / "shims").mkdir()
    (data / "shims/tool").symlink_to(tmp_path / "real/mise")
    (tmp_path / ".config/mise").mkdir(parents=True)
    return f"{data}/shims", tmp_path / ".config/mise/config.toml"


def test_a_shim_of_asdf_is_the_version_of_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable, or the file in the home; the project's file isn't read."""
    path, file = asdf(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / ".tool-versions").write_text("kit 2.0.0\n")
    monkeypatch.chdir(project)

    def got(**environ: str) -> str:
        what = find("tool", {"PATH": f"{path}:{tmp_path}/outside/bin", "HOME": str(tmp_path), **environ})
        return "" if what is None else what.argv[0].removeprefix(str(tmp_path))

    with pytest.raises(RequestRejected, match=r"project's own choice isn't used.*asdf which"):
        got()
    file.write_text("# mine\nother 9\nkit 3.0.0 1.2.0 # both\n")
    assert "/.asdf/installs/kit/1.2.0/bin/tool" == got()
    assert "/.asdf/installs/kit/2.0.0/bin/tool" == got(ASDF_KIT_VERSION="2.0.0")
    assert "/outside/bin/tool" == got(ASDF_KIT_VERSION="system")
    for wrong in ("../../../outside", "path:/outside", "/outside", "."):
        with pytest.raises(RequestRejected, match="asdf which"):
            got(ASDF_KIT_VERSION=wrong)


@pytest.mark.parametrize(("text", "version"), [
    ('[tools]\n"npm:@scope/kit" = "1.2.0"\n', "1.2.0"), ('[tools]\n"npm:@scope/kit" = ["9", "2"]\n', "2.0.0"),
    ('[tools]\n"npm:@scope/kit" = {version = "1.2"}\n', "1.2.0"), ('[tools]\n"npm:@scope/kit" = "../x"\n', ""),
    ("tools = 3\n", ""), ("[tools\n", ""), ("", ""), ('[tools]\n"../.." = "1.2.0"\n"" = 1\n', "")])
def test_a_shim_of_mise_is_the_version_of_its_users(tmp_path: Path, text: str, version: str) -> None:
    path, file = mise(tmp_path)
    file.write_text(text)
    environ = {"PATH": path, "HOME": str(tmp_path)}
    if version:
        what = find("tool", environ)
        assert what is not None
        assert (f"{tmp_path}/data/mise/installs/npm-scope-kit/{version}/bin/tool",) == what.argv
    else:
        with pytest.raises(RequestRejected, match="mise which"):
            find("tool", environ)


def test_a_shim_of_volta_is_the_package_or_the_node_of_its_users(tmp_path: Path) -> None:
    root = tmp_path / ".volta"
    program(root / "bin/volta-shim")
    node = program(root / "tools/image/node/22.1.0/bin/node")
    script = program(root / "tools/image/packages/@scope/kit/bin/tool", "#!/usr/bin/env node\n")
    for name in ("node", "tool", "evil"):
        (root / "bin" / name).symlink_to("volta-shim")
    (root / "tools/user/bins").mkdir(parents=True)
    (root / "tools/user/platform.json").write_text('{"node": {"runtime": "22.1.0", "npm": null}}')
    (root / "tools/user/bins/tool.json").write_text('{"name": "tool", "package": "@scope/kit"}')
    (root / "tools/user/bins/evil.json").write_text('{"name": "evil", "package": "../../x"}')
    program(root / "tools/x/bin/evil")
    what = find("tool", {"PATH": f"{root}/bin"})
    assert what is not None
    assert (str(node), str(script)) == what.argv
    with pytest.raises(RequestRejected, match="volta which"):
        find("evil", {"PATH": f"{root}/bin"})


def test_a_program_in_a_folder_of_that_name_is_no_shim(tmp_path: Path) -> None:
    for text in ("\x7fELF", "#!/bin/sh\necho hi\n"):
        program(tmp_path / "shims/tool", text)
        what = find("tool", {"PATH": f"{tmp_path}/shims:/usr/bin:/bin"})
        assert what is not None
        assert f"{tmp_path}/shims/tool" == what.argv[-1]


def test_an_installation_of_pythons_is_shown_with_its_modules(tmp_path: Path) -> None:
    """Not the whole prefix, which may be a home's ~/.local."""
    real = program(tmp_path / "py/bin/python3.12")
    (tmp_path / "py/bin/python3").symlink_to("python3.12")
    (tmp_path / "py/lib/python3.12").mkdir(parents=True)
    (tmp_path / "py/lib/libpython3.12.so.1.0").touch()
    script = program(tmp_path / "py/bin/aider", f"#!{tmp_path}/py/bin/python3\n")
    what = find("aider", {"PATH": f"{tmp_path}/py/bin"})
    assert what is not None
    assert (str(real), str(script)) == what.argv
    assert {str(real), str(script), *(f"{tmp_path}/py/lib/{name}" for name in ("python3.12", "libpython3.12.so.1.0"))
            } == set(what.shown)
