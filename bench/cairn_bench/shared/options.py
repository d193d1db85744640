"""The options that several commands have, and the types of their values."""

import argparse
import os

from . import NEW_RESULTS, RESULTS, ROOT, WORK


def add_command(parsers, name, about, module):
    """A sub-command: the module's docstring is its --help, and its add_arguments adds the rest."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = parsers.add_parser(name, help=about, description=module.__doc__, formatter_class=raw)
    parser.set_defaults(error=parser.error)
    module.add_arguments(parser)
    return parser


def check(module, args):
    """What the parser alone cannot check, if the module has such."""
    if hasattr(module, "check"):
        module.check(args)


def add_directory(parser):
    about = "where checkpoints are written, on the disk to be measured; default: build/bench"
    parser.add_argument("--dir", type=os.path.abspath, default=WORK, help=about)
    about = "of memory: for an ext4 there instead of --dir, so that the disk adds nothing of its own (needs root)"
    parser.add_argument("--disk-in-memory", type=positive(float), metavar="GB", help=about)


def add_record(parser):
    """Of a command that writes results. Its arguments have the folder for them."""
    new, committed = (os.path.relpath(folder, ROOT) for folder in (NEW_RESULTS, RESULTS))
    about = f"write to {committed}, over the committed results; default: write to {new}"
    parser.add_argument("--record", action="store_const", dest="folder", const=RESULTS, default=NEW_RESULTS, help=about)


def add_repetitions(parser, default, name="--repetitions"):
    parser.add_argument(name, type=positive(int), default=default, help=f"default: {default}")


def add_only(parser, what, known):
    parser.add_argument("--only", type=some_of(known), help=f"{what}, by comma: {', '.join(known)}; default: all")


def positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected more than 0, found {text}")
        return value

    return convert


def whole(text):
    """A whole number, which may be written as 7e9."""
    value = float(text)
    if not value.is_integer():
        raise ValueError
    return int(value)


def some_of(known):
    def convert(text):
        wanted = text.split(",")
        if unknown := [one for one in wanted if one not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return wanted

    return convert


def numbers(kind=int, least=0):
    def convert(text):
        values = [kind(one) for one in text.split(",")]
        if any(value < least for value in values):
            raise argparse.ArgumentTypeError(f"expected numbers of at least {least}, found {text}")
        return values

    return convert
