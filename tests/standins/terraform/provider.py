"""`python -m tests.standins.terraform.provider`: what Terraform starts as hashicorp/google, or as hashicorp/time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf import provider as plumbing
from tf import runner

from tests.standins.terraform import clock
from tests.standins.terraform.cloud import Cloud
from tests.standins.terraform.wire import Servicer


class _Shutdown(runner._ShutdownInterceptor):
    """Ctrl-C asks a provider to hurry, and what is under way still gets its answer; tf would cut every connection."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        if handler_call_details.method.endswith("/StopProvider"):
            return continuation(handler_call_details)
        return super().intercept_service(continuation, handler_call_details)


def main(arguments: Sequence[str]) -> None:
    """Serve until Terraform says that it's enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the cloud is kept")
    parser.add_argument("--time", action="store_true", help="be hashicorp/time")
    parser.add_argument("--compute", help="the Compute Engine emulator")
    parser.add_argument("--storage", help="the stand-in of Cloud Storage")
    options = parser.parse_args(arguments)
    schema = json.loads(Path(__file__).with_name("schema.json").read_text())
    cloud = Cloud(options.folder, compute=options.compute, storage=options.storage)

    def servicer(_: Any) -> Servicer:
        return Servicer(clock.SCHEMA, clock.Clock()) if options.time else Servicer(schema, cloud)

    # tf's own plans by rules that aren't those of Google's provider; the connection to Terraform is what it's here for.
    plumbing.ProviderServicer = servicer
    runner._ShutdownInterceptor = _Shutdown
    runner.run_provider(None, sys.argv[:1])


if __name__ == "__main__":
    main(sys.argv[1:])
