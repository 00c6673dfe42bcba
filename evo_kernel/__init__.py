"""Turn a PyTorch function into the fastest verified GPU kernel: the engine, and everything a user touches."""


def version() -> str:
    """The release that is installed; "source" where the code runs from a checkout that nobody installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("evo-kernel")
    except PackageNotFoundError:
        return "source"
