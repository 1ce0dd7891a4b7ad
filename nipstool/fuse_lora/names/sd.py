"""The UNet of SD1.5, SD2 and SDXL in diffusers' names and in those of the original code (sgm, ldm).

kohya writes SD1.5 and SD2 with diffusers' block names and SDXL with sgm's. All three have two layers a block, so
that sgm's running numbers are i = 3b + l + 1 on the way down and i = 3b + l on the way up.
"""

from .tables import Table

_ATTENTION = (
    "proj_in",
    "proj_out",
    *(f"transformer_blocks.{{}}.attn{n}.to_{part}" for n in (1, 2) for part in ("q", "k", "v", "out.0")),
    "transformer_blocks.{}.ff.net.0.proj",
    "transformer_blocks.{}.ff.net.2",
)
_RESNET = (
    ("in_layers.2", "conv1"),
    ("out_layers.3", "conv2"),
    ("emb_layers.1", "time_emb_proj"),
    ("skip_connection", "conv_shortcut"),
)
_TOP = (
    ("input_blocks.0.0", "conv_in"),
    ("out.2", "conv_out"),
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("label_emb.0.0", "add_embedding.linear_1"),
    ("label_emb.0.2", "add_embedding.linear_2"),
)
_BLOCKS = range(4)


def _places() -> list[tuple[str, str, bool]]:
    """(sgm's block, diffusers' block, is it an attention) for every place of a UNet of four blocks each way."""
    places = [
        ("middle_block.0", "mid_block.resnets.0", False),
        ("middle_block.1", "mid_block.attentions.0", True),
        ("middle_block.2", "mid_block.resnets.1", False),
    ]
    for way, first, layers in (("input_blocks", 1, 2), ("output_blocks", 0, 3)):
        side = "down_blocks" if way == "input_blocks" else "up_blocks"
        for block in _BLOCKS:
            for layer in range(layers):
                number = 3 * block + layer + first
                places.append((f"{way}.{number}.0", f"{side}.{block}.resnets.{layer}", False))
                places.append((f"{way}.{number}.1", f"{side}.{block}.attentions.{layer}", True))
    return places


def _sgm_rows() -> list[tuple[str, str]]:
    rows = list(_TOP)
    for sgm, block, attention in _places():
        inner = tuple((name, name) for name in _ATTENTION) if attention else _RESNET
        rows += [(f"{sgm}.{old}", f"{block}.{new}") for old, new in inner]
    for block in _BLOCKS:
        rows.append((f"input_blocks.{3 * block + 3}.0.op", f"down_blocks.{block}.downsamplers.0.conv"))
        rows.append((f"output_blocks.{3 * block + 2}.2.conv", f"up_blocks.{block}.upsamplers.0.conv"))
    return rows


def _diffusers_names() -> list[str]:
    """Every module with free numbers, so that UNets of other sizes are read as well."""
    sides = ("down_blocks.{}", "up_blocks.{}", "mid_block")
    names = [f"{side}.attentions.{{}}.{inner}" for side in sides for inner in _ATTENTION]
    names += [f"{side}.resnets.{{}}.{new}" for side in sides for _, new in _RESNET]
    return [*names, "down_blocks.{}.downsamplers.0.conv", "up_blocks.{}.upsamplers.0.conv"]


UNET = Table(
    component="unet",
    rows=tuple(_sgm_rows()),
    # a block without attention has its upsampler in second place (SD1.5 in the original code's names)
    aliases=tuple((f"output_blocks.{3 * b + 2}.1.conv", f"up_blocks.{b}.upsamplers.0.conv") for b in _BLOCKS),
    own=tuple(_diffusers_names()),
)
