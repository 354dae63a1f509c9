"""The command `layerprobe`, and `python -m layerprobe`.

It imports as little as it can before it catches Ctrl-C, which would print a traceback until then.
"""

from __future__ import annotations

import os
import sys

_INTERRUPTED = '{"schema": 2, "error": {"code": "interrupted", "file": null, "message": "interrupted", "fix": ""}}'
_STOPPED = (130, 143)  # exit codes after SIGINT and SIGTERM


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        try:
            from layerprobe import cli
        except ModuleNotFoundError as error:
            if (error.name or "layerprobe").startswith("layerprobe"):
                raise
            sys.exit(_report_missing(error))
        cli.main()
    except SystemExit as ended:
        if ended.code in _STOPPED:
            from layerprobe.system.progress import end_soon

            end_soon(ended.code)
        raise
    except KeyboardInterrupt:  # while the command line was imported, or while it printed an error
        as_json = "--json" in sys.argv
        os.write(1 if as_json else 2, f"{_INTERRUPTED if as_json else 'interrupted.'}\n".encode())
        os._exit(130)
    finally:
        import signal

        # All is done: while the interpreter ends, Ctrl-C needs no traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _report_missing(error: ModuleNotFoundError) -> int:
    """Name a missing package that the command line itself is made of, such as typer; the exit code."""
    import json

    package = str(error.name).partition(".")[0]
    message, fix = f"{package} is not installed", f"pip install {package}; layerprobe doctor lists the others"
    if "--json" in sys.argv:
        values = {"code": "environment", "file": None, "message": message, "fix": fix}
        print(json.dumps({"schema": 2, "error": values}))
    else:
        print(f"error: {message}. {fix}.", file=sys.stderr)
    return 5  # of EnvironmentFault


if __name__ == "__main__":
    main()
