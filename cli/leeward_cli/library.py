"""`leeward config`: compiler and linker flags for libleeward and its header; copies both below a prefix."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

import leeward
from leeward.errors import Unsupported

#: The folder that build_client.py makes: include/leeward.h, lib/libleeward.*, lib/pkgconfig/leeward.pc.
SDK = Path(leeward.__path__[0], "_native", "sdk")

SONAME = "libleeward.so.0"


def flags(cflags: bool, libs: bool, static: bool) -> str:
    """Arguments for a compiler, quoted for a shell; *static*: link the archive, so that the program needs no library."""
    _must_be_here()
    words = [f"-I{SDK / 'include'}"] if cflags else []
    if libs and static:
        words.append(str(SDK / "lib" / "libleeward.a"))
    elif libs:
        words += [f"-L{SDK / 'lib'}", f"-Wl,-rpath,{SDK / 'lib'}", "-lleeward"]
    return shlex.join(words)


def library() -> str:
    _must_be_here()
    return str(SDK / "lib" / SONAME)


def install(prefix: Path) -> list[Path]:
    """Copy header and libraries below *prefix*, each in one step, since programs use old ones. Returns their paths."""
    _must_be_here()
    made = []
    for source in sorted(path for path in SDK.rglob("*") if path.is_file()):
        target = prefix / source.relative_to(SDK)
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            if target.name == "libleeward.so":
                arriving.symlink_to(SONAME)  # a wheel can't have links, so SDK has a copy
            else:
                shutil.copyfile(source, arriving)
                arriving.chmod(0o644)
            arriving.replace(target)
        finally:
            arriving.unlink(missing_ok=True)
        made.append(target)
    return made


def _must_be_here() -> None:
    if not (SDK / "lib" / SONAME).exists():
        raise Unsupported("libleeward", have=f"none in {SDK}", need="an installation that was built with a C compiler",
                          cure="install one, such as Debian's gcc, and leeward again")


@click.command()
@click.option("--cflags", is_flag=True, help="Print the compiler's flags for leeward.h.")
@click.option("--libs", is_flag=True, help="Print the linker's flags for libleeward.")
@click.option("--static", is_flag=True, help="With --libs: link the archive, not the shared library.")
@click.option("--library", "shared", is_flag=True, help="Print the path of the shared library.")
@click.option("--install", "prefix", type=click.Path(path_type=Path), metavar="PREFIX",
              help="Copy header, libraries and leeward.pc below PREFIX.")
def config(cflags: bool, libs: bool, static: bool, shared: bool, prefix: Path | None) -> None:
    """
    Print the flags for programs that use leeward.h and libleeward.

    \b
        cc run.c $(leeward config --cflags --libs) -o run
    """
    if (cflags or libs) + shared + (prefix is not None) != 1 or (static and not libs):
        raise click.UsageError("say one of: --cflags and --libs (also with --static), --library, --install PREFIX")
    if prefix is not None:
        try:
            made = install(prefix.absolute())
        except OSError as error:
            raise click.ClickException(f"nothing can be written there: {error}") from None
        click.echo("\n".join(map(str, made)))
    else:
        click.echo(library() if shared else flags(cflags, libs, static))
