"""A decoder whose layers have widths of their own: the stock classes, with each layer's parts built narrower.

`nsc_layers` in config.json gives every layer's FFN width, query heads and key and value heads.
"""

import copy

from transformers import LlamaConfig as BaseConfig
from transformers import LlamaForCausalLM as BaseForCausalLM


def per_layer(config_class: type, model_class: type) -> tuple[type, type]:
    """The configuration and model classes with layers of their own widths, out of the stock ones."""

    class NscConfig(config_class):
        model_type = f"nsc_{config_class.model_type}"

    class NscForCausalLM(model_class):
        config_class = NscConfig

        def __init__(self, config: NscConfig):
            super().__init__(config)
            for index, (layer, widths) in enumerate(zip(self.model.layers, config.nsc_layers, strict=True)):
                own = copy.deepcopy(config)
                own.intermediate_size = widths["ffn"]
                own.num_attention_heads = widths["heads"]
                own.num_key_value_heads = widths["kv"]
                layer.mlp = type(layer.mlp)(own)
                layer.self_attn = type(layer.self_attn)(own, index)
            self.post_init()

    return NscConfig, NscForCausalLM


NscConfig, NscForCausalLM = per_layer(BaseConfig, BaseForCausalLM)
