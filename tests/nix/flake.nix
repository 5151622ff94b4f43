# A stand-in for nixpkgs: the names that leeward's flake uses, as derivations that hold nothing. What it doesn't name is an
# error, and so is an argument that the real function doesn't have. It can't tell whether the real packages build.
{
  outputs = { self }:
    let
      lib = import ./lib.nix;

      named = system: name: derivation { inherit name system; builder = "/bin/sh"; };
      each = system: names: lib.genAttrs names (named system);

      # A function that makes a derivation of these arguments and no others.
      maker = system: required: optional: arguments:
        let
          given = builtins.attrNames arguments;
          unknown = builtins.filter (name: !builtins.elem name (required ++ optional)) given;
          lacking = builtins.filter (name: !builtins.elem name given) required;
          inputs = builtins.concatLists (map (name: arguments.${name} or [ ])
            [ "build-system" "buildInputs" "dependencies" "nativeBuildInputs" "packages" ]);
          others = builtins.filter (input: !(input ? drvPath)) inputs;
        in
        if unknown != [ ] || lacking != [ ] then throw "unknown arguments ${toString unknown}, lacking ${toString lacking}"
        else if others != [ ] then throw "an input of ${arguments.pname or "the shell"} is no package"
        else builtins.deepSeq (arguments.meta or { }) (derivation {
          inherit system;
          name = if arguments ? pname then "${arguments.pname}-${arguments.version}" else "shell";
          builder = "/bin/sh";
          inputs = map (input: "${input}") inputs;
          phases = "${arguments.buildPhase or ""}${arguments.installPhase or ""}";
        });

      nixpkgs = system: each system [
        "cargo" "clang" "coreutils" "gcc" "go" "libcap" "liburing" "libseccomp" "nodejs" "pkg-config" "qemu" "rustc"
        "shellcheck" "valgrind"
      ] // {
        inherit lib;
        formats.toml = { }: {
          type = lib.types.attrs;
          generate = name: value: derivation {
            inherit name system;
            builder = "/bin/sh";
            text = builtins.toJSON value;
          };
        };
        mkShell = maker system [ "packages" ] [ "LD_LIBRARY_PATH" ];
        python3 = named system "python3" // {
          withPackages = choose: named system
            (lib.concatStringsSep "-" ([ "python3-with" ] ++ map (one: one.name) (choose (nixpkgs system).python3Packages)));
        };
        python3Packages = each system [
          "cffi" "click" "hatchling" "msgpack" "pyroute2" "setuptools" "structlog"
        ] // {
          buildPythonApplication = maker system [ "pname" "version" "src" ] [
            "build-system" "buildInputs" "dependencies" "doCheck" "meta" "optional-dependencies" "pyproject"
            "pythonImportsCheck"
          ];
          toPythonModule = package: package;
        };
        stdenv = {
          hostPlatform.system = system;
          mkDerivation = maker system [ "pname" "version" "src" ] [
            "buildInputs" "buildPhase" "dontInstall" "installPhase" "meta" "nativeBuildInputs"
          ];
        };
      };
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] nixpkgs;
    };
}
