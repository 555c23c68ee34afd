"""What is learned: each pre-training system is one objective."""

from collections.abc import Mapping
from types import MappingProxyType

from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.objectives.infoxlm import InfoXLMConfig, XLCoConfig
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.translate import TranslateConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig

# The systems of this project, and the dataclasses they are configured by, under their gin names.
SYSTEMS: Mapping[str, type] = MappingProxyType(
    {
        "XLME": XLMEConfig,
        "XLM": XLMConfig,
        "InfoXLM": InfoXLMConfig,
        "XLCo": XLCoConfig,
        "VECO": VecoConfig,
        "FineTune": FineTuneConfig,
        "Translate": TranslateConfig,
        "Masking": MaskingConfig,
    }
)
