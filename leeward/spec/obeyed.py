"""
Files of a project that programs on the host run or obey by themselves, when a person opens or enters the project, or
does anything in it.

Runs in:   anywhere; pure.
Leaves:    what a person runs: the project's own code, its tests and scripts, what `Makefile` and `package.json` say,
           the modules of a virtual environment or of `node_modules`.
"""

from __future__ import annotations

#: Paths below a project's folder.
OBEYED = (
    # git, and tools that it starts
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes", ".git/commondir", ".git/HEAD.lock",
    ".gitmodules", ".husky", ".huskyrc", ".githooks", ".git-hooks", ".pre-commit-config.yaml", "prek.toml",
    ".overcommit.yml", ".lefthook", ".lefthook-local", ".config/lefthook.yml",
    *(f"{dot}{name}.{kind}" for name in ("lefthook", "lefthook-local") for dot in ("", ".")
      for kind in ("yml", "yaml", "json", "toml")),
    # settings of agents
    ".leeward", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".claude/agents",
    ".claude/commands", ".claude/skills", ".claude/rules", ".claude/output-styles", ".claude/CLAUDE.md", "CLAUDE.md",
    "CLAUDE.local.md", ".codex", "AGENTS.md", "AGENTS.override.md", "AGENT.md", ".agents", ".gemini", "GEMINI.md",
    ".cursor", ".cursorrules", "opencode.json", "opencode.jsonc", ".opencode", ".aider.conf.yml",
    ".aider.model.settings.yml", ".github/copilot-instructions.md", ".github/instructions", ".github/prompts",
    ".github/agents", ".github/hooks", ".windsurf", ".windsurfrules", ".clinerules", ".roo", ".roomodes", ".kilocode",
    ".kiro", ".amazonq", ".continue", ".junie", ".augment", ".goosehints", ".qwen", "QWEN.md", ".factory", "crush.json",
    ".crush.json", ".amp", "WARP.md", ".rules",
    # shells, and environments that are activated on entering the folder
    ".envrc", ".direnv", ".autoenv", ".autoenv.zsh", "flake.nix", "flake.lock", "shell.nix", "devenv.nix",
    "devenv.yaml", "devbox.json", ".tool-versions", ".mise", ".mise.toml", "mise.toml", ".mise.local.toml",
    "mise.local.toml", "mise/config.toml", ".config/mise.toml", ".config/mise", ".rtx.toml", ".sdkmanrc", ".nvmrc",
    *(f"{folder}/{name}" for folder in (".venv", "venv") for name in ("bin/activate", "bin/python", "pyvenv.cfg")),
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc", ".zshrc", ".zshenv", ".zprofile",
    ".zlogin", ".zlogout",
    # editors and development environments, and the programs by which they check what is open
    ".vscode", ".idea", ".fleet", ".exrc", ".vim", ".vimrc", ".local.vimrc", ".lvimrc", ".nvim", ".nvimrc", ".nvim.lua",
    ".lazy.lua", ".neoconf.json", ".dir-locals.el", ".dir-locals-2.el", ".editorconfig", ".devcontainer",
    ".devcontainer.json", ".zed", ".helix", ".ycm_extra_conf.py", ".pylintrc", "pylintrc", ".rubocop.yml",
    ".solargraph.yml", ".eslintrc.js", ".eslintrc.cjs",
    *(f"eslint.config.{kind}" for kind in ("js", "mjs", "cjs", "ts")),
    *(f"{name}.{kind}" for name in (".prettierrc", "prettier.config") for kind in ("js", "mjs", "cjs")),
    # interpreters and debuggers that read a file of the folder in which they are started
    ".Rprofile", ".Renviron", ".RData", ".irbrc", ".pryrc", ".iex.exs", ".ghci", ".ocamlinit", ".octaverc", "startup.m",
    ".pdbrc", ".perldb", ".gdbinit", ".lldbinit",
    # package managers' settings that name programs
    ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins", ".yarn/sdks", ".pnp.cjs", ".pnp.loader.mjs",
    ".pnpmfile.cjs", ".pnpmfile.mjs", "pnpm-workspace.yaml", "bunfig.toml", ".cargo/config.toml", ".cargo/config",
    "rust-toolchain", "rust-toolchain.toml", ".bundle/config", ".mvn", ".sbtopts", ".jvmopts", "gradle.properties",
    "gradle/wrapper", ".bazelrc", ".bazeliskrc", ".bazelversion", "tools/bazel", ".pdm-python", "uv.toml",
    "ansible.cfg", ".python-version", ".node-version", ".ruby-version", ".java-version",
)
#: Endings of names in the project's folder that count as well.
ENDINGS = (".code-workspace", ".sublime-project")

_WITHIN = tuple(f"/{each.casefold()}/" for each in OBEYED)


def is_obeyed(path: str) -> bool:
    """
    Whether *path*, relative to a project, or a folder in it, is one of OBEYED or ENDINGS, at any depth and in either
    case: a folder of a project can be opened or entered, too.
    """
    whole = f"/{path.casefold()}/"
    return any(each in whole for each in _WITHIN) or path.casefold().endswith(ENDINGS)
