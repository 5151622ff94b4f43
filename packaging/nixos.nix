# services.leeward for NixOS: the daemon as a service of its own user, on a socket that systemd keeps.
#
# The units are those of `leeward daemon install`, which cli/leeward_cli/units.py explains; a test holds the two together.
flake:
{ config, lib, pkgs, ... }:
let
  cfg = config.services.leeward;
  toml = pkgs.formats.toml { };
in
{
  options.services.leeward = {
    enable = lib.mkEnableOption "leeward, which runs untrusted Python code";
    package = lib.mkOption {
      type = lib.types.package;
      default = flake.packages.${pkgs.stdenv.hostPlatform.system}.default;
      description = "The leeward that runs.";
    };
    group = lib.mkOption {
      type = lib.types.str;
      default = "";
      description = "The group whose members may use the daemon; with none, root alone may.";
    };
    settings = lib.mkOption {
      type = toml.type;
      default = { };
      example = { pool_size = 8; };
      description = "Keys of the configuration, as `leeward daemon run --print-config` lists them.";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];

    systemd.sockets.leeward = {
      description = "leeward's socket";
      wantedBy = [ "sockets.target" ];
      socketConfig = {
        ListenStream = "/run/leeward/leeward.sock";
        SocketMode = if cfg.group == "" then "0600" else "0660";
        DirectoryMode = "0755";
        Backlog = "4096";
        RemoveOnStop = "yes";
      } // lib.optionalAttrs (cfg.group != "") { SocketGroup = cfg.group; };
    };

    systemd.services.leeward = {
      description = "leeward, which runs untrusted Python code";
      requires = [ "leeward.socket" ];
      after = [ "leeward.socket" ];
      wantedBy = [ "multi-user.target" ];
      serviceConfig = {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = lib.concatStringsSep " " ([ "${cfg.package}/bin/leeward-python" "daemon" "run" ]
          ++ lib.optionals (cfg.settings != { }) [ "--config" "${toml.generate "leeward.toml" cfg.settings}" ]
          ++ lib.optionals (cfg.group != "") [ "--group" cfg.group ]);
        ExecReload = "${pkgs.coreutils}/bin/kill -HUP $MAINPID";
        KillMode = "mixed";
        TimeoutStopSec = "15";
        StateDirectory = "leeward-service";
        StateDirectoryMode = "0700";
        TimeoutStartSec = "60";
        Restart = "on-failure";
        WatchdogSec = "30";
        Delegate = "yes";
        LimitNOFILE = "524288";
        UMask = "0077";
        AppArmorProfile = "-leeward";
        NoNewPrivileges = "yes";
        LockPersonality = "yes";
        RestrictRealtime = "yes";
        SystemCallArchitectures = "native";
        RestrictAddressFamilies = "AF_UNIX AF_INET AF_INET6 AF_NETLINK";
        User = "leeward";
        DynamicUser = "yes";
        CapabilityBoundingSet = "";
        AmbientCapabilities = "";
        ProtectSystem = "strict";
        ProtectHome = "read-only";
        PrivateTmp = "yes";
        RemoveIPC = "yes";
        KeyringMode = "private";
      };
    };
  };
}
