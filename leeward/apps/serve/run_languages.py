"""The languages of `/run_code`: how a program is compiled and run in a sandbox, by what the host has."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunLanguage:
    """A language with the name of the file that has the program, and the commands, in /workspace."""

    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def program(self) -> str:
        """What the host has to have."""
        return (self.compile or self.run)[0]


#: Python and pytest are run by the daemon's own interpreter, or that of an environment, and aren't here.
LANGUAGES: dict[str, RunLanguage] = {
    "bash": RunLanguage("main.sh", ("bash", "main.sh")),
    "nodejs": RunLanguage("main.js", ("node", "main.js")),
    "cpp": RunLanguage("main.cpp", ("./main",), ("g++", "-std=c++17", "-O1", "main.cpp", "-o", "main", "-lpthread")),
    "go": RunLanguage("main.go", ("./main",), ("go", "build", "-o", "main", "main.go"),
                      (("GOCACHE", "/tmp/go-cache"), ("GOPATH", "/tmp/go"), ("GOTOOLCHAIN", "local"))),
    "rust": RunLanguage("main.rs", ("./main",), ("rustc", "-o", "main", "main.rs")),
    "java": RunLanguage("Main.java", ("java", "-ea", "Main"), ("javac", "-encoding", "UTF-8", "Main.java")),
    "perl": RunLanguage("main.pl", ("perl", "main.pl")),
    "ruby": RunLanguage("main.rb", ("ruby", "main.rb")),
    "php": RunLanguage("main.php", ("php", "-f", "main.php")),
    "lua": RunLanguage("main.lua", ("lua", "main.lua")),
    "R": RunLanguage("main.R", ("Rscript", "main.R")),
    "julia": RunLanguage("main.jl", ("julia", "main.jl")),
}

#: Where a sandbox looks for programs.
_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


def offered() -> list[str]:
    """The languages whose programs this host has."""
    found = [name for name, language in LANGUAGES.items()
             if any(os.access(os.path.join(folder, language.program), os.X_OK) for folder in _PATH)]
    return ["python", "pytest", *found]
