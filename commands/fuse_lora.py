"""Fuse LoRAs."""
import typer
from typing import Annotated
app = typer.Typer()
@app.command()
def fuse(content: str, style: list[str], mu: Annotated[str, typer.Option(help="how hard")] = "0.5"):
    """Fuse two LoRAs.

    \b
    Example:
      nipstool fuse-lora a b -o c
    """
    print("fuse", content, style, mu)
@app.command()
def compare(a: str, b: str, mu: float = 0.5):
    """Compare two LoRAs."""
    print("compare", a, b, mu)
