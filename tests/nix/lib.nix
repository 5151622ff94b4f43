# As much of nixpkgs.lib as leeward's flake and module use, by the same names and with the same meaning.
rec {
  genAttrs = names: make: builtins.listToAttrs (map (name: { inherit name; value = make name; }) names);
  makeLibraryPath = packages: concatStringsSep ":" (map (package: "${package}/lib") packages);
  concatStringsSep = builtins.concatStringsSep;
  optionals = condition: list: if condition then list else [ ];
  optionalAttrs = condition: set: if condition then set else { };
  licenses.mit = "MIT";
  platforms.linux = [ "x86_64-linux" "aarch64-linux" ];

  types = {
    str = builtins.isString;
    bool = builtins.isBool;
    attrs = builtins.isAttrs;
    package = value: value ? drvPath || value ? outPath;
  };
  mkOption = option: { isOption = true; } // option;
  mkEnableOption = what: mkOption { type = types.bool; default = false; description = "Whether to enable ${what}."; };
  mkIf = condition: settings: if condition then settings else { };

  # The module's configuration where an operator has set *settings* of services.leeward; each has to be an option's.
  evaluate = module: pkgs: settings:
    let
      made = module { inherit pkgs; lib = import ./lib.nix; config.services.leeward = values; };
      options = made.options.services.leeward;
      unknown = builtins.attrNames (builtins.removeAttrs settings (builtins.attrNames options));
      values = builtins.mapAttrs
        (name: option:
          let value = settings.${name} or option.default; in
          if option.type value then value else throw "services.leeward.${name} is of another type")
        options;
    in
    if unknown != [ ] then throw "services.leeward has no option ${toString unknown}" else made.config;
}
