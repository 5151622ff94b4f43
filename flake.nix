{
  description = "leeward: runs untrusted Python code on plain Linux";

  inputs.nixpkgs.url = "nixpkgs";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      version = builtins.head (builtins.match ".*__version__ = \"([^\"]+)\".*" (builtins.readFile ./leeward/__init__.py));

      meta = pkgs: {
        license = pkgs.lib.licenses.mit;
        platforms = pkgs.lib.platforms.linux;
      };

      # The package with the shim compiled in, libleeward and the command line.
      leeward = pkgs: pkgs.python3Packages.buildPythonApplication {
        pname = "leeward";
        inherit version;
        pyproject = true;
        src = self;
        build-system = with pkgs.python3Packages; [ hatchling cffi setuptools ];
        buildInputs = [ pkgs.liburing ];
        dependencies = with pkgs.python3Packages; [ cffi click msgpack structlog ];
        optional-dependencies.egress = with pkgs.python3Packages; [ cryptography h11 pyroute2 ];
        optional-dependencies.approvals = [ pkgs.python3Packages.publicsuffixlist ];
        optional-dependencies.web = with pkgs.python3Packages; [ jinja2 starlette uvicorn websockets ];
        optional-dependencies.mcp = [ pkgs.python3Packages.mcp ];
        # The tests need namespaces and cgroups, which a build doesn't have.
        doCheck = false;
        pythonImportsCheck = [ "leeward" "leeward._native._shim" "leeward_cli" ];
        meta = meta pkgs // { mainProgram = "leeward"; };
      };

      # The extension module by itself.
      shim = pkgs: pkgs.stdenv.mkDerivation {
        pname = "leeward-shim";
        inherit version;
        src = self;
        nativeBuildInputs = [ (pkgs.python3.withPackages (packages: [ packages.cffi packages.setuptools ])) ];
        buildInputs = [ pkgs.liburing ];
        buildPhase = "python3 build_ffi.py $out/leeward/_native";
        dontInstall = true;
        meta = meta pkgs;
      };

      # libleeward with its header and leeward.pc, and the program `leeward`; no Python in it.
      client = pkgs: pkgs.stdenv.mkDerivation {
        pname = "libleeward";
        inherit version;
        src = self;
        nativeBuildInputs = [ pkgs.python3 ];
        buildPhase = ''
          python3 build_client.py --prefix $out
          python3 build_client.py made
        '';
        installPhase = "install -D made/leeward $out/bin/leeward";
        meta = meta pkgs // { mainProgram = "leeward"; };
      };
    in
    {
      packages = forEach (pkgs: {
        default = leeward pkgs;
        # For programs that `import leeward`.
        python = pkgs.python3Packages.toPythonModule (leeward pkgs);
        shim = shim pkgs;
        client = client pkgs;
      });

      nixosModules.default = import ./packaging/nixos.nix self;

      # What ./dev finds its tools in; it keeps its own .venv on top.
      devShells = forEach (pkgs: {
        default = pkgs.mkShell {
          packages = [
            pkgs.python3 pkgs.gcc pkgs.libcap pkgs.liburing pkgs.libseccomp pkgs.shellcheck
            # The tests of the C client, its examples, and what is built for others.
            pkgs.pkg-config pkgs.valgrind pkgs.clang pkgs.go pkgs.cargo pkgs.rustc pkgs.nodejs pkgs.qemu
          ];
          # The tests' pyseccomp opens the library by name at run time.
          LD_LIBRARY_PATH = pkgs.lib.makeLibraryPath [ pkgs.libseccomp ];
        };
      });
    };
}
