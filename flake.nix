{
  description = "leeward: runs untrusted Python code on plain Linux";

  inputs.nixpkgs.url = "nixpkgs";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});

      # The package with the shim compiled in, the client and the command line.
      leeward = pkgs: pkgs.python3Packages.buildPythonApplication {
        pname = "leeward";
        version = builtins.head (builtins.match ".*__version__ = \"([^\"]+)\".*" (builtins.readFile ./leeward/__init__.py));
        pyproject = true;
        src = self;
        build-system = with pkgs.python3Packages; [ hatchling cffi setuptools ];
        dependencies = with pkgs.python3Packages; [ cffi click msgpack pyseccomp structlog ];
        optional-dependencies.net = [ pkgs.python3Packages.pyroute2 ];
        # The tests need namespaces and cgroups, which a build doesn't have.
        doCheck = false;
        pythonImportsCheck = [ "leeward" "leeward._native._shim" "leeward_cli" ];
        meta = {
          license = pkgs.lib.licenses.mit;
          mainProgram = "leeward";
          platforms = pkgs.lib.platforms.linux;
        };
      };
    in
    {
      packages = forEach (pkgs: rec {
        default = leeward pkgs;
        # For programs that `import leeward`.
        client = pkgs.python3Packages.toPythonModule default;
      });

      # What ./dev finds its tools in; it keeps its own .venv on top.
      devShells = forEach (pkgs: {
        default = pkgs.mkShell {
          packages = [ pkgs.python3 pkgs.gcc pkgs.libcap pkgs.libseccomp pkgs.shellcheck ];
          # pyseccomp opens the library by name at run time.
          LD_LIBRARY_PATH = pkgs.lib.makeLibraryPath [ pkgs.libseccomp ];
        };
      });
    };
}
