"""`python -m leeward_cli`: the same as `leeward`."""

from leeward_cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
