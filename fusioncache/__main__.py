"""``python -m fusioncache`` is the command line."""

from fusioncache.cli.main import main

if __name__ == "__main__":
    main(prog_name="fusioncache")
