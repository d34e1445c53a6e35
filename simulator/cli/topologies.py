"""``collsim topologies``: node presets and network fabrics, listed, shown and drawn."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.examples import epilog
from simulator.cli.foreign import not_foreign

HELP = "Node presets and network fabrics: list, show, plot."

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command(
    "list", help="List network fabrics and node presets.", epilog=epilog("topologies list")
)
def list_(
    word: Annotated[str | None, typer.Argument(help="Only names with this word.")] = None,
) -> None:
    """List what there is."""
    import topologies
    from simulator.base.errors import CollsimError, Problem, TopologyError, nearest
    from topologies import hardware

    def wanted(*texts: str) -> bool:
        return word is None or any(word.lower() in text.lower() for text in texts)

    def summary_of(name: str) -> str:
        try:
            return hardware.summary(name)
        except CollsimError as error:
            return str(error)

    fabrics = [(entry.name, entry.summary) for entry in topologies.entries()]
    presets = [(name, summary_of(name)) for name in hardware.names()]
    headings = {"network fabrics": fabrics, "node presets": presets}
    found = {title: [row for row in rows if wanted(*row)] for title, rows in headings.items()}
    if not any(found.values()):
        known = [name for rows in headings.values() for name, _ in rows]
        raise TopologyError(
            Problem(
                message=f"no fabric or preset has {word!r} in its name or summary",
                allowed="a word such as h100, aws or pcie",
                suggestion=nearest(word or "", known),
            )
        )
    lines: list[str] = []
    for title, rows in found.items():
        if rows:
            lines += ["", title, *(f"  {name:<24} {summary}" for name, summary in rows)]
    typer.echo("\n".join(lines[1:]))


@app.command(
    "show",
    help="Show a node preset's interior or a fabric's options.",
    epilog=epilog("topologies show"),
)
def show(
    name: Annotated[str, typer.Argument(help="Preset or fabric.", callback=not_foreign)],
) -> None:
    """Show one preset or fabric."""
    import topologies
    from simulator.base.fields import option_fields
    from simulator.base.units import format_rate, format_time
    from topologies import hardware

    if name in topologies.kinds():
        entry = topologies.entry(name)
        typer.echo(f"{name}: {entry.summary}\n  {entry.reference}\n\noptions")
        for field in option_fields(topologies.option_type(name)):
            default = "required" if field.required else f"default {field.default}"
            if not field.required and field.default is None:
                default = "derived unless given"
            typer.echo(f"  {field.name:<20} {field.kind}, {default}")
            typer.echo(f"  {'':<20} {field.doc}")
        return
    template = hardware.load(name)
    typer.echo(f"{template.name}: {template.summary}")
    typer.echo(f"  source: {template.source} ({template.source_quality})")
    typer.echo(f"  GPU: {template.gpu.name} ({template.gpu.generation})")
    typer.echo(f"  CPU: {template.cpu_model} ({template.cpu_arch})")
    if template.nic_kind is not None:
        rate = format_rate(template.nic_rate_Bps)
        typer.echo(f"  network ports: {template.nic_kind}, {rate} each and direction")
    typer.echo(f"  P2P over PCIe: {template.p2p}, GPUDirect: {template.gpudirect}\n\nlinks")
    for link in template.links:
        rate, latency = format_rate(link.bandwidth_Bps), format_time(link.latency_s)
        typer.echo(f"  {link.a:<12} {link.b:<12} {link.kind:<10} {rate:<28} {latency}")
        typer.echo(f"  {'':<36} {link.source}")


@app.command(
    "plot",
    help="Draw a node preset, a network or a scenario's cluster, with its links.",
    epilog=epilog("topologies plot"),
)
def plot(
    name: Annotated[
        str, typer.Argument(help="Preset, network fabric, or scenario file.", callback=not_foreign)
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="File (.png .svg .pdf).")],
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-N", help="Number of nodes; 1, or 8 dgx-h100 of a network."),
    ] = None,
    fabric: Annotated[str | None, typer.Option(help="Network between the nodes.")] = None,
) -> None:
    """Draw a topology."""
    from pathlib import Path

    import topologies
    from simulator.compose.picture import picture_of
    from simulator.results.plots_links import plot_link_load
    from simulator.scenario.resolve import from_words, load

    if Path(name).suffix in (".yaml", ".yml"):
        scenarios = load(name)
    else:
        words = {"node": name, "nodes": str(nodes or 1), "collective.op": "barrier"}
        if fabric is None and name in topologies.kinds() and name != "none":
            fabric = name
            words |= {"node": "dgx-h100", "nodes": str(nodes or 8)}
        if fabric is not None:
            words["fabric.kind"] = fabric
        scenarios = from_words(words)
    plot_link_load(picture_of(scenarios.variants[0]), output)
    typer.echo(f"wrote {output}", err=True)
