"""
The table of names that programs on the host obey.

Names:     parts between slashes; they count at any depth, and with a folder everything below it does. A part may have
           one `*`. Names count in either case. A name that begins with `~/` counts in a home folder alone, where an
           agent keeps its state.
Leaves:    the project's own code and what it imports. A name that begins with a dot and isn't here is treated as one of
           WHEN_ASKED (`names.obeyed_by`).
"""

from __future__ import annotations

from leeward.base.dataclass import dataclass

#: A program runs what the file names without a further question, when a person enters or opens the folder, or uses the
#: program there for anything.
AT_ONCE = "runs at once"
#: A program runs or follows the file when a person asks for just that: to build, to test, to install, to start.
WHEN_ASKED = "runs when asked"
#: A program obeys the file or keeps it, and no setting in it names a program.
HARMLESS = "harmless"


@dataclass(frozen=True, slots=True)
class ObeyedRow:
    """Names that one program obeys."""

    names: tuple[str, ...]  # as this module's docstring has them
    who: str  # the program
    kind: str  # AT_ONCE, WHEN_ASKED or HARMLESS
    since: str  # the version, or the year, from which the program obeys them
    source: str  # where that is written


_TEXTS = (
    # --- repositories ---------------------------------------------------------------
    ("git", AT_ONCE, "1.0", "gitrepository-layout(5), git-config(1), githooks(5)",
     ".git .git/config .git/hooks .git/info/attributes .git/commondir .git/gitdir .git/modules"),
    ("lazygit", AT_ONCE, "0.44", "lazygit: docs/Config.md", ".git/lazygit.yml .lazygit.*"),
    ("git rebase --continue", WHEN_ASKED, "1.7", "git-rebase(1): exec", ".git/rebase-merge .git/rebase-apply .git/sequencer"),
    ("git", AT_ONCE, "2.20", "git-worktree(1)", ".git/config.worktree"),
    ("Mercurial", AT_ONCE, "0.7", "hgrc(5)", ".hg .hg/hgrc .hg/sharedpath .hg/requires"),
    ("Mercurial", AT_ONCE, "5.7", "hgrc(5)", ".hg/hgrc-not-shared"),
    ("Sapling", AT_ONCE, "2022", "sapling-scm.com/docs: configuration", ".sl .sl/config .git/sl/config"),
    ("Jujutsu", AT_ONCE, "0.1", "docs.jj-vcs.dev: config", ".jj .jj/repo/config.toml .jj/workspace-config.toml"),
    ("Subversion", AT_ONCE, "1.0", "svnbook: the working copy; repository hooks", ".svn"),
    ("Fossil", AT_ONCE, "1.0", "fossil-scm.org: settings", ".fslckout _FOSSIL_ *.fossil .fossil-settings"),
    ("Pijul", AT_ONCE, "1.0", "pijul.org/manual: configuration", ".pijul .pijul/config"),
    ("Darcs", AT_ONCE, "2.0", "darcs manual: prefs, posthook", "_darcs _darcs/prefs"),
    ("Bazaar", AT_ONCE, "1.0", "bzr help configuration", ".bzr .bzr/branch"),
    ("CVS, Monotone", AT_ONCE, "1.10", "cvs(5): CVSROOT, commitinfo; monotone.ca: hooks", "CVS/Root CVSROOT _MTN"),
    ("git, where its settings name the folder", AT_ONCE, "2.9", "git-config(1): core.hooksPath",
     ".husky .huskyrc .githooks .git-hooks"),
    ("pre-commit's hook", AT_ONCE, "1.0", "pre-commit.com", ".pre-commit-config.yaml"),
    ("prek's hook", AT_ONCE, "0.2", "prek.j178.dev", "prek.toml"),
    ("overcommit's hook", AT_ONCE, "0.1", "github.com/sds/overcommit", ".overcommit.yml .overcommit"),
    ("lefthook's hook", AT_ONCE, "0.1", "lefthook.dev: configuration",
     (".lefthook .lefthook-local .config/lefthook.* lefthook.yml lefthook.yaml lefthook.json lefthook.toml"
     " lefthook-local.yml lefthook-local.yaml lefthook-local.json lefthook-local.toml .lefthook.yml .lefthook.yaml"
     " .lefthook.json .lefthook.toml .lefthook-local.yml .lefthook-local.yaml .lefthook-local.json"
     " .lefthook-local.toml")),
    ("git", WHEN_ASKED, "1.5", "gitmodules(5), gitattributes(5)", ".gitmodules .gitattributes"),
    ("git", HARMLESS, "1.5", "gitignore(5), git-blame(1)", ".gitignore .mailmap .git-blame-ignore-revs .gitkeep"),
    # --- agents: settings, then instructions ----------------------------------------
    ("leeward", AT_ONCE, "1.0", "docs/agents-settings.md", ".leeward .hole"),
    ("Claude Code", AT_ONCE, "1.0", "code.claude.com/docs: settings, hooks, mcp", ".claude .mcp.json .claude-plugin"),
    ("Codex", AT_ONCE, "2025", "developers.openai.com/codex: config", ".codex"),
    ("Gemini CLI", AT_ONCE, "2025", "geminicli.com/docs: configuration", ".gemini"),
    ("Cursor", AT_ONCE, "1.7", "cursor.com/docs/agent/hooks", ".cursor"),
    ("opencode", AT_ONCE, "2025", "opencode.ai/docs/config", ".opencode opencode.json opencode.jsonc"),
    ("Aider", AT_ONCE, "0.20", "aider.chat/docs/config", ".aider.conf.yml .aider.model.settings.yml"),
    ("Copilot", AT_ONCE, "2025", "docs.github.com/copilot: hooks, extensions, mcp, lsp",
     ".github/hooks .github/copilot .github/extensions .github/mcp.json .github/lsp.json"),
    ("Windsurf", AT_ONCE, "2025", "docs.windsurf.com: hooks", ".windsurf"),
    ("Roo Code", AT_ONCE, "2025", "docs.roocode.com: mcp", ".roo"),
    ("Kilo Code", AT_ONCE, "2025", "kilocode.ai/docs: mcp", ".kilocode"),
    ("Kiro, Amazon Q", AT_ONCE, "2025", "kiro.dev/docs/hooks", ".kiro .amazonq"),
    ("Continue", AT_ONCE, "2024", "docs.continue.dev: config", ".continue .continuerc.json"),
    ("Junie", AT_ONCE, "2025", "jetbrains.com/help/junie", ".junie"),
    ("Augment", AT_ONCE, "2025", "docs.augmentcode.com", ".augment"),
    ("Qwen Code", AT_ONCE, "2025", "qwenlm.github.io/qwen-code-docs", ".qwen"),
    ("Factory", AT_ONCE, "2025", "docs.factory.ai", ".factory"),
    ("Crush", AT_ONCE, "2025", "github.com/charmbracelet/crush", "crush.json .crush.json .crush"),
    ("Amp", AT_ONCE, "2025", "ampcode.com/manual", ".amp .agents"),
    ("agents, as instructions", WHEN_ASKED, "2025", "agents.md; each agent's own documentation",
     ("CLAUDE.md CLAUDE.local.md AGENTS.md AGENTS.override.md AGENT.md GEMINI.md QWEN.md WARP.md SKILL.md .cursorrules"
     " .windsurfrules .clinerules .roomodes .goosehints .rules .github/copilot-instructions.md .github/instructions"
     " .github/prompts .github/agents")),
    # --- shells, and environments that are activated on entering a folder -------------
    ("direnv", AT_ONCE, "2.0", "direnv(1): a file that was allowed may source these",
     ".envrc .envrc.local .envrc.private .direnv .direnvrc"),
    ("autoenv, zsh-autoenv", AT_ONCE, "0.1", "github.com/hyperupcall/autoenv", ".autoenv .autoenv.zsh .autoenv_leave.zsh"),
    ("mise", AT_ONCE, "2024", "mise.jdx.dev: configuration, trust",
     (".mise .mise.toml .mise.local.toml mise.toml mise.local.toml mise/config.toml .config/mise .config/mise.toml"
     " .rtx.toml")),
    ("shells whose home folder it is", WHEN_ASKED, "1989", "bash(1), zsh(1), readline(3)",
     (".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .inputrc .zshrc .zshenv .zprofile .zlogin"
     " .zlogout .kshrc .cshrc .tcshrc .login .config/fish")),
    ("nix, devenv, devbox", WHEN_ASKED, "2.4", "nix.dev; devenv.sh",
     "flake.nix flake.lock shell.nix default.nix devenv.nix devenv.yaml devbox.json"),
    ("tools that choose a version", WHEN_ASKED, "2015", "asdf-vm.com; github.com/pyenv/pyenv",
     (".tool-versions .sdkmanrc .python-version .node-version .nvmrc .ruby-version .java-version .go-version"
     " rust-toolchain rust-toolchain.toml")),
    ("programs that read variables from it", WHEN_ASKED, "2012", "docs.docker.com/compose; dotenv", ".env .env.* .flaskenv"),
    # --- editors --------------------------------------------------------------------
    ("VS Code and its relatives", AT_ONCE, "1.30", "code.visualstudio.com/docs: tasks, workspace trust",
     ".vscode *.code-workspace .vs .theia"),
    ("JetBrains' editors", AT_ONCE, "2016", "jetbrains.com/help: startup tasks, project security", ".idea .fleet *.iml"),
    ("Vim, Neovim", AT_ONCE, "5.0", "vim: 'exrc'; plugins for local settings",
     ".exrc .vim .vimrc .local.vimrc .lvimrc .nvim .nvimrc .nvim.lua .lazy.lua .neoconf.json .ycm_extra_conf.py"),
    ("Emacs", AT_ONCE, "23.1", "Emacs manual: directory variables", ".dir-locals.el .dir-locals-2.el .projectile"),
    ("Zed, Helix", AT_ONCE, "2024", "zed.dev/docs: configuring; docs.helix-editor.com", ".zed .helix"),
    ("Sublime Text", AT_ONCE, "2", "sublimetext.com/docs: projects", "*.sublime-project"),
    ("Eclipse", WHEN_ASKED, "3.0", "help.eclipse.org: builders", ".project .classpath .settings"),
    ("development containers", WHEN_ASKED, "2019", "containers.dev", ".devcontainer .devcontainer.json"),
    ("editors", HARMLESS, "2011", "editorconfig.org", ".editorconfig"),
    # --- checkers, which editors start by themselves if they have an extension for them ----
    ("eslint", WHEN_ASKED, "0.1", "eslint.org/docs: configuration files", "eslint.config.* .eslintrc .eslintrc.*"),
    ("prettier, stylelint", WHEN_ASKED, "1.0", "prettier.io/docs: configuration",
     ".prettierrc .prettierrc.* prettier.config.* .stylelintrc .stylelintrc.* stylelint.config.*"),
    ("pylint", WHEN_ASKED, "0.1", "pylint: init-hook, load-plugins", ".pylintrc pylintrc pylintrc.toml .pylintrc.toml"),
    ("rubocop, solargraph", WHEN_ASKED, "0.1", "docs.rubocop.org: require", ".rubocop.yml .solargraph.yml"),
    # --- interpreters and debuggers that read a file of the folder in which they start ----
    ("R", AT_ONCE, "2.0", "R: Startup", ".Rprofile .Renviron .RData"),
    ("irb, pry", AT_ONCE, "1.8", "docs.ruby-lang.org: irb", ".irbrc .pryrc"),
    ("iex", AT_ONCE, "0.10", "hexdocs.pm/iex: .iex.exs", ".iex.exs"),
    ("ghci", AT_ONCE, "6.0", "GHC user's guide: the .ghci files", ".ghci"),
    ("ocaml, utop", AT_ONCE, "3.0", "ocaml.org/manual: toplevel", ".ocamlinit"),
    ("octave, matlab", AT_ONCE, "2.0", "Octave manual: startup files", ".octaverc startup.m"),
    ("pdb", AT_ONCE, "2.0", "docs.python.org: pdb", ".pdbrc"),
    ("gdb, lldb, perl -d", AT_ONCE, "4.0", "gdb(1), lldb(1), perldebug(1)", ".gdbinit .lldbinit .perldb"),
    # --- building, testing, installing ------------------------------------------------
    ("make", WHEN_ASKED, "3.0", "make(1)", "Makefile GNUmakefile makefile *.mk configure"),
    ("cmake, meson, ninja, autotools", WHEN_ASKED, "2.0", "cmake.org; mesonbuild.com",
     ("CMakeLists.txt CMakePresets.json CMakeUserPresets.json *.cmake meson.build meson_options.txt build.ninja"
     " configure.ac configure.in Makefile.am")),
    ("other runners of tasks", WHEN_ASKED, "2016", "just.systems; taskfile.dev; each one's documentation",
     ("justfile .justfile Taskfile.yml Taskfile.yaml Earthfile Tiltfile Procfile Procfile.dev SConstruct SConscript"
     " wscript Jamroot dodo.py fabfile.py WORKSPACE WORKSPACE.bazel MODULE.bazel BUILD.bazel"
     " .bazelrc .bazeliskrc .bazelversion tools/bazel bazelw pants.toml .buckconfig xmake.lua premake5.lua"
     " build.zig build.zig.zon Kbuild BSDmakefile Makefile.toml Tupfile Tupfile.lua Snakefile"
     " process-compose.yaml process-compose.yml mprocs.yaml *.just meson.options")),
    ("python, pip, pytest and other tools", WHEN_ASKED, "2000", "docs.python.org: site; setuptools; docs.pytest.org",
     ("setup.py setup.cfg pyproject.toml conftest.py noxfile.py toxfile.py tox.ini pytest.ini sitecustomize.py"
     " usercustomize.py *.pth requirements.txt requirements-*.txt Pipfile manage.py .pdm-python uv.toml pip.conf"
     " .pypirc ansible.cfg .coveragerc hatch.toml hatch_build.py pdm.toml poetry.toml mkdocs.yml docs/conf.py"
     " source/conf.py mypy.ini")),
    ("whoever uses the environment", WHEN_ASKED, "3.3", "docs.python.org: venv",
     "bin/activate bin/activate.* bin/Activate.ps1 bin/python* bin/pip* pyvenv.cfg .venv .tox .nox"),
    ("whoever runs it by its path", WHEN_ASKED, "1970", "execve(2)",
     ("bin/node bin/npm bin/npx bin/corepack bin/ruby bin/bundle bin/rails bin/rake bin/setup bin/dev bin/console"
     " bin/perl bin/sh bin/bash bin/env bin/git bin/make bin/go bin/cargo bin/java node_modules/.bin")),
    ("npm, yarn, pnpm, bun, deno", WHEN_ASKED, "2010", "docs.npmjs.com; yarnpkg.com; pnpm.io; bun.sh; docs.deno.com",
     ("package.json package.json5 package.yaml .npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .yarn/sdks"
     " .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs .pnpmfile.mjs pnpm-workspace.yaml pnpmfile.js bunfig.toml deno.json"
     " deno.jsonc binding.gyp lerna.json nx.json turbo.json")),
    ("tools for JavaScript", WHEN_ASKED, "2014", "vite.dev; webpack.js.org; each one's documentation",
     ("vite.config.* vitest.config.* vitest.workspace.* webpack.config.* rollup.config.* next.config.* nuxt.config.*"
     " svelte.config.* astro.config.* remix.config.* esbuild.config.* babel.config.* .babelrc .babelrc.*"
     " postcss.config.* .postcssrc .postcssrc.* tailwind.config.* jest.config.* karma.conf.* playwright.config.*"
     " cypress.config.* metro.config.* gulpfile.* Gruntfile.* .mocharc.* .lintstagedrc .lintstagedrc.*"
     " lint-staged.config.* .commitlintrc .commitlintrc.* commitlint.config.* tsup.config.* rspack.config.*"
     " .swcrc drizzle.config.* knexfile.* angular.json project.json biome.json biome.jsonc hardhat.config.*"
     " truffle-config.js capacitor.config.* wxt.config.* electron.vite.config.*")),
    ("cargo, rust-analyzer", WHEN_ASKED, "0.1", "doc.rust-lang.org/cargo: build scripts, configuration",
     "Cargo.toml build.rs .cargo rust-project.json"),
    ("go", WHEN_ASKED, "1.18", "go.dev/ref/mod", "go.mod go.work go.env"),
    ("bundler, rake, rspec", WHEN_ASKED, "1.0", "bundler.io; ruby.github.io/rake",
     ("Gemfile gems.rb *.gemspec Rakefile rakefile Rakefile.rb rakefile.rb .bundle .rspec .rakerc Guardfile Capfile"
     " Vagrantfile Brewfile Fastfile Podfile Dangerfile config.ru Thorfile Berksfile Puppetfile")),
    ("maven, gradle, sbt, ant", WHEN_ASKED, "1.0", "maven.apache.org; docs.gradle.org; scala-sbt.org",
     ("pom.xml .mvn mvnw build.gradle build.gradle.* settings.gradle settings.gradle.* init.gradle gradle.properties"
     " gradle/wrapper gradlew gradlew.bat build.sbt *.sbt .sbtopts .jvmopts build.xml")),
    ("composer, mix, stack, dotnet, swift, dart", WHEN_ASKED, "2012", "each one's documentation",
     ("composer.json mix.exs rebar.config stack.yaml Setup.hs *.cabal cabal.project *.csproj *.fsproj *.vbproj *.sln"
     " *.props *.targets Directory.Build.* NuGet.Config global.json Package.swift pubspec.yaml build.clj project.clj"
     " deps.edn shard.yml dune dune-project Makefile.PL Build.PL cpanfile phpunit.xml phpunit.xml.dist *.nimble"
     " config.nims nim.cfg dub.json dub.sdl *.opam Anchor.toml foundry.toml *.vcxproj")),
    ("docker, podman, compose, tilt, terraform", WHEN_ASKED, "2013", "docs.docker.com; developer.hashicorp.com",
     ("Dockerfile Dockerfile.* *.dockerfile Containerfile docker-compose* compose.yml compose.yaml compose.override.*"
     " docker-bake.* .dockerignore *.tf *.tofu .terraformrc terragrunt.hcl skaffold.yaml Pulumi.yaml Pulumi.yml"
     " cdk.json serverless.yml serverless.yaml serverless.ts samconfig.toml helmfile.yaml")),
    ("services that build what is pushed", WHEN_ASKED, "2011", "docs.github.com/actions; docs.gitlab.com/ci",
     (".github/workflows .github/actions .github/dependabot.yml .gitlab-ci.yml .gitlab .circleci .travis.yml"
     " .drone.yml .woodpecker .woodpecker.yml .buildkite azure-pipelines.yml Jenkinsfile appveyor.yml .goreleaser.*"
     " netlify.toml vercel.json wrangler.toml wrangler.json wrangler.jsonc bitbucket-pipelines.yml firebase.json"
     " fly.toml render.yaml")),
    # --- what is kept in a project, and names no program ---------------------------------
    ("nobody: caches and results", HARMLESS, "2010", "each tool's documentation",
     (".cache .mypy_cache .pytest_cache .ruff_cache .ipynb_checkpoints .coverage .nyc_output .next .nuxt .turbo"
     " .parcel-cache .svelte-kit .gradle .DS_Store .yarn .eslintcache .hypothesis .terraform")),
    # --- the state folders of agents ------------------------------------------------------
    ("Claude Code", AT_ONCE, "1.0", "code.claude.com/docs: settings, hooks, plugins, skills",
     ("~/.claude/settings.json ~/.claude/settings.local.json ~/.claude/hooks ~/.claude/plugins ~/.claude/agents"
     " ~/.claude/commands ~/.claude/skills ~/.claude/rules ~/.claude/output-styles ~/.claude/CLAUDE.md"
     " ~/.claude/keybindings.json ~/.claude/mcp.json ~/.claude/.mcp.json ~/.claude/statusline*"
     " ~/.claude/remote-settings.json ~/.claude/local")),
    ("Codex", AT_ONCE, "2025", "developers.openai.com/codex: config, rules, skills",
     ("~/.codex/config.toml ~/.codex/hooks.json ~/.codex/rules ~/.codex/prompts ~/.codex/skills ~/.codex/AGENTS.md"
     " ~/.codex/AGENTS.override.md ~/.codex/instructions.md ~/.codex/.env ~/.codex/packages")),
    ("Gemini CLI", AT_ONCE, "2025", "geminicli.com/docs: configuration, extensions, hooks",
     ("~/.gemini/settings.json ~/.gemini/extensions ~/.gemini/commands ~/.gemini/hooks ~/.gemini/policies"
     " ~/.gemini/skills ~/.gemini/agents ~/.gemini/GEMINI.md ~/.gemini/.env ~/.gemini/trustedFolders.json")),
    ("opencode", AT_ONCE, "2025", "opencode.ai/docs: config, plugins",
     ("~/.config/opencode ~/.local/share/opencode/plugin ~/.cache/opencode/node_modules ~/.cache/opencode/package.json"
     " ~/.local/share/opencode/bin ~/.cache/opencode/bin")),
    ("Aider", AT_ONCE, "0.20", "aider.chat/docs/config", "~/.aider/.aider.conf.yml ~/.aider/*.yml"),
)

#: The table.
ROWS = tuple(ObeyedRow(tuple(names.split()), who, kind, since, source) for who, kind, since, source, names in _TEXTS)
