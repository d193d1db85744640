"""Names and numbers as the tables have them."""

from ..figures.runs import middle

STRATEGIES = {
    "cairn": "Cairn",
    "checkfreq": "CheckFreq",
    "pccheck": "PCcheck",
    "gpm": "GPM",
    "sync": "torch.save + fsync",
    "gemini": "Gemini",
}
SYSTEM_NAMES = {
    "cairn": "Cairn, pool of 1 GiB",
    "cairn-whole": "Cairn, pool of the state's size",
    "dcp.save": "DCP save",
    "dcp.async_save": "DCP async_save",
    "dcp.async_save-kept-stager": "DCP async_save, stager kept",
    "dcp.save-huggingface": "DCP save, Hugging Face format",
    "torch_checkpointing-buffered": "torch_checkpointing, buffered",
}


def short(value):
    """Three digits at most, and no exponent."""
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 1
        else f"{value:.2f}"
        if size >= 0.1
        else f"{value:.2g}"
    )


def percent(share):
    return (
        f"{100 * share:.0f}"
        if abs(share) >= 1
        else f"{100 * share:.1f}"
        if abs(share) >= 0.01
        else f"{100 * share:.2f}"
    )


def span(values, form="{:.1f}".format):
    """The median, with the least and the greatest where they differ."""
    median, least, most = map(form, middle(values))
    return median if least == most else f"{median} ({least} to {most})"
