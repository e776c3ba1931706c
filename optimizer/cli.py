"""The command line. Every command is a thin layer over the package; heavy imports happen inside commands."""


def main() -> None:
    raise SystemExit("not assembled yet")
