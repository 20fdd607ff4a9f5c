"""`surgicalmamba bench WHAT`: measurements, one per subcommand. Each prints a table, or JSON with --json."""

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure speed and size on this machine: medians, 95th percentiles, ratios in one run.")
