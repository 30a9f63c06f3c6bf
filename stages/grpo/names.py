"""Names of the losses, aggregations, KL estimators and corrections, without an import of torch, for settings.

The function that has a case for each name describes them.
"""

from typing import Literal

LossKind = Literal["ppo_clip", "reinforce", "masked", "cispo", "gspo", "tanh", "cross_entropy"]
"""See `stages.grpo.loss.token_loss`."""
Aggregation = Literal["token_mean", "sequence_mean", "group_mean", "inverse_length", "constant"]
"""See `stages.grpo.aggregation.token_shares`."""
Estimator = Literal["k1", "k2", "k3", "unbiased_k3"]
"""See `stages.grpo.kl.divergence`."""
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""See `stages.grpo.ratios.correction_factors`."""
KLPlace = Literal["loss", "token_reward", "sequence_reward"]
"""See `stages.grpo.kl_reward.kl_in_advantages`."""
