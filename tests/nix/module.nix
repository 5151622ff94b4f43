# The units that the module of NixOS makes, as JSON: evaluated by tests/integration/test_flake.py.
{ settings }:
let
  lib = import ./lib.nix;
  package = name: { outPath = "/nix/store/${name}"; drvPath = "/nix/store/${name}.drv"; };
  pkgs = {
    coreutils = package "coreutils";
    stdenv.hostPlatform.system = "x86_64-linux";
    formats.toml = { }: { type = lib.types.attrs; generate = name: value: "/nix/store/${name}"; };
  };
  flake.packages.x86_64-linux.default = package "leeward";
in
lib.evaluate (import ../../packaging/nixos.nix flake) pkgs (builtins.fromJSON settings)
