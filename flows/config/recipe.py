"""The recipe of a run as one typed config."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config
from flows.config.distillation import DistillationConfig
from stages.curriculum.overlay import SECTIONS, with_base_sections
from stages.curriculum.pass_rates import RUN
from stages.environments import environment
from stages.environments.capabilities import AnswersCalls, Proves, WritesAnswers, WritesDerivations, missing
from stages.environments.config import SourceConfig
from stages.environments.generate import PuzzleConfig, ZebraConfig
from stages.environments.puzzle import Taught
from stages.evaluate import EvaluateConfig
from stages.finetune import FinetuneConfig
from stages.grade import GradeConfig, NeededCapability, needs_of
from stages.grpo.packing import PackConfig
from stages.models.adapter_config import AdapterConfig
from stages.models.source import ModelConfig
from stages.optional.advance import PhaseEnd
from stages.optional.rate import PassRateConfig
from stages.optional.sft import WarmStartConfig
from stages.optional.teach import POLICY, TeachConfig
from stages.prepare import PrepareConfig
from stages.promotion.gate import PromoteConfig
from stages.promotion.reward_alarm import RewardAlarm
from stages.sample import SampleConfig
from stages.sampling.config import SamplingConfig
from stages.sampling.limits import longest, with_followed_limits
from stages.strategies.config import BestOf
from stages.training.critic import ValueConfig


class PhaseConfig(PhaseEnd):
    """One phase of a run: its end, its start, and the settings in which it differs from the recipe."""

    name: str = Field(min_length=1, max_length=40, description="Name of the phase, for people.")
    reference: Literal["kept", "phase_start"] = Field(
        default="kept",
        description="Reference model of the KL term: the reference of the phase before, or the checkpoint that this "
        "phase begins with.",
    )
    optimizer: Literal["kept", "fresh"] = Field(
        default="kept",
        description="`fresh`: the phase begins from the published checkpoint with a new optimizer, like a new run. "
        "`kept`: it continues with the optimizer state, which must hold the parameters that the phase trains.",
    )
    may_shrink: bool = Field(
        default=False, description="Allow a lower limit of completion tokens than in the phase before."
    )
    sample: SampleConfig = Field(default_factory=SampleConfig)
    grade: GradeConfig = Field(default_factory=GradeConfig)
    pack: PackConfig = Field(default_factory=PackConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)

    @model_validator(mode="after")
    def _named_in_one_line(self) -> Self:
        if not self.name.isprintable():
            raise ValueError(f"name must be one line of printable characters, got {self.name!r}")
        return self

    def check_after(self, before: "PhaseConfig | None", *, is_last: bool) -> None:
        """Refuses a phase that cannot follow the one before it.

        Raises:
            ValueError: It has no end, or is the last one and has an end; it begins with a reference that is not used;
                or its completions are shorter than before.
        """
        if is_last and not self.is_open:
            raise ValueError(f"the last phase, {self.name!r}, ends with the run: drop its iterations and until")
        if not is_last and self.is_open:
            raise ValueError(f"{self.name!r} has no end: set its iterations or until; only the last phase needs none")
        if self.reference == "phase_start" and self.finetune.reference == "none":
            raise ValueError(
                f"reference of {self.name!r} is 'phase_start', but finetune.reference is 'none': set it, or leave the "
                "phase's reference out"
            )
        if before is None or self.may_shrink:
            return
        tokens, earlier = self.sample.sampling.max_tokens, before.sample.sampling.max_tokens
        if tokens < earlier:
            raise ValueError(
                f"sample.sampling.max_tokens of {self.name!r} is {tokens}, less than the {earlier} of {before.name!r}: "
                "let contexts grow, or set may_shrink = true"
            )


class Recipe(Config):
    """All settings that decide what a run learns. A run is a flow, a recipe and a profile."""

    title: str = Field(description="Purpose of the recipe, in one line.")
    iterations: int = Field(ge=0, le=1_000_000, description="GRPO iterations after the warm start.")
    seed: int = Field(default=0, ge=0, description="Seed of every section without a seed of its own.")
    iterate_ahead: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: iteration i + 1 is sampled from the weights before iteration i's update, while iteration i is "
        "trained. `finetune.loss` then has old_logprobs 'trainer' and importance_correction 'token_truncate', unless "
        "they are set, `kind` is 'masked' or the loss is your own. 0: iterations are sampled from the newest weights.",
    )
    model: ModelConfig
    puzzles: PrepareConfig = Field(default_factory=PrepareConfig)
    warm_start: WarmStartConfig | None = None
    distil: DistillationConfig | None = Field(
        default=None, description="Supervised fine-tuning on the texts of a teacher, after the warm start; null: none."
    )
    sample: SampleConfig = Field(default_factory=SampleConfig)
    grade: GradeConfig = Field(default_factory=GradeConfig)
    value: ValueConfig | None = Field(
        default=None, description="A critic, which gives each token its advantage; null: none."
    )
    teach: TeachConfig | None = Field(
        default=None, description="On-policy distillation: a teacher judges the tokens of the rollouts; null: none."
    )
    pack: PackConfig = Field(default_factory=PackConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    final: EvaluateConfig = Field(
        default_factory=EvaluateConfig,
        description="Measurement of the promoted checkpoint on the test split, before the first iteration and after "
        "the last.",
    )
    promote: PromoteConfig = Field(default_factory=PromoteConfig)
    alarm: RewardAlarm | None = Field(
        default=RewardAlarm(),
        description="Rule by which the run warns that reward rises while held-out accuracy falls; null disables it.",
    )

    rate: PassRateConfig | None = None
    phases: list[PhaseConfig] = Field(
        default=[],
        max_length=50,
        description="Phases of the run, one after the other. Each is the recipe with other settings of "
        f"{', '.join(SECTIONS)}; the last one ends with the run.",
    )

    @property
    def learns_from_rewards(self) -> bool:
        """Whether rewards decide the advantages; false with a teacher, which judges tokens."""
        return self.teach is None

    @property
    def learns_from_advantages(self) -> bool:
        """Whether learning needs a nonzero advantage; false if right completions are imitated in any case."""
        loss = self.finetune.loss
        return self.pack.uniform_groups == "dropped" or not (loss.kind == "cross_entropy" or loss.positive_nll)

    @property
    def taught(self) -> Taught | None:
        """Texts of the solver that the vocabulary of a model made from scratch must cover; None for answers alone."""
        of_warm_start = self.warm_start.taught if self.warm_start else None
        return of_warm_start or (self.distil.taught if self.distil else None)

    @model_validator(mode="before")
    @classmethod
    def _spread_seed(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        seeded = ["puzzles", "sample", "pack"]
        seeded += ["warm_start"] if data.get("warm_start") else []
        model = data.get("model")
        seeded += ["model"] if isinstance(model, dict) and model.get("source") == "scratch" else []
        seed = {"seed": data.get("seed", 0)}
        sections = {name: data.get(name, {}) for name in seeded}
        spread = {**data, **_with_seed(sections, seed)}
        if isinstance(distil := data.get("distil"), dict):
            parts = {name: distil.get(name, {}) for name in ("sample", "texts", "sft")}
            spread["distil"] = {**distil, **_with_seed(parts, seed)}
        return with_followed_limits(with_base_sections(_with_correction(spread)))

    @model_validator(mode="after")
    def _phases_agree(self) -> Self:
        self._check_sections()
        if self.iterate_ahead:
            self._check_ahead()
        for number, phase in enumerate(self.phases):
            try:
                if phase.until and phase.until.metric == "greedy_accuracy" and not self.evaluate.greedy:
                    raise ValueError("until.metric is greedy_accuracy, but evaluate.greedy is false")
                phase.check_after(self.phases[number - 1] if number else None, is_last=number == len(self.phases) - 1)
                self.in_phase(number)._check_sections()
            except ValueError as error:
                raise ValueError(f"phases.{number}: {error}") from error
        return self

    def in_phase(self, number: int) -> Self:
        """Returns the recipe of a phase, counted from 0: this one with the sections of the phase."""
        phase = self.phases[number]
        return self.model_copy(update={**{name: getattr(phase, name) for name in SECTIONS}, "phases": []})

    def with_packs(self, own: PackConfig, of_phases: Sequence[PackConfig] = ()) -> Self:
        """Returns the recipe with its section `pack` and those of its first phases replaced."""
        phases = list(self.phases)
        for number, pack in enumerate(of_phases):
            phases[number] = phases[number].model_copy(update={"pack": pack})
        return self.model_copy(update={"pack": own, "phases": phases})

    def with_rows_of(self, frozen: Mapping[str, Any]) -> Self:
        """Returns the recipe with the numbers of a frozen one in place of each `pack.row_tokens` that is `auto`."""

        def begun(pack: PackConfig, section: Mapping[str, Any]) -> PackConfig:
            number = section.get("pack", {}).get("row_tokens")
            known = pack.row_tokens == "auto" and isinstance(number, int)
            return pack.model_copy(update={"row_tokens": number}) if known else pack

        phases = zip(self.phases, frozen.get("phases", ()), strict=False)
        return self.with_packs(begun(self.pack, frozen), [begun(phase.pack, section) for phase, section in phases])

    @property
    def parts(self) -> list[Self]:
        """The recipes by which iterations work: those of the phases, or this one."""
        return [self.in_phase(number) for number in range(len(self.phases))] or [self]

    @property
    def longest_sampling(self) -> SamplingConfig:
        """The settings by which iterations sample; in a run with phases, those of the phase with the highest limit.

        A run without iterations samples only in its final evaluation.
        """
        return longest([part.sample.sampling for part in self.parts]) if self.iterations else self.final.sampled

    @property
    def most_in_flight(self) -> int | None:
        """Largest number of completions that a phase requests at once; None if a phase requests all train puzzles."""
        if self.rate is not None or (self.distil is not None and self.distil.samples):
            return None
        samples = [part.sample for part in self.parts]
        most = [sample.puzzles_per_iteration * sample.sampling.samples_per_prompt for sample in samples]
        most += [each.puzzles * each.sampled.samples_per_prompt for each in (self.evaluate, self.final)]
        return max(most)

    @property
    def published_adapter(self) -> AdapterConfig | None:
        """The LoRA adapter of the iterations' checkpoints, that of the highest rank; None if there is none."""
        trained = [part.finetune.trainable for part in self.parts]
        adapters = [config.adapter for config in trained if config.publishes_adapter and config.adapter]
        return max(adapters, key=lambda adapter: adapter.rank, default=None)

    @property
    def rates_itself(self) -> bool:
        """Whether an iteration needs the pass rates that earlier iterations measured."""
        return any(RUN in part.sample.rated_names for part in self.parts)

    def _check_sections(self) -> None:
        """Refuses sections that contradict one another."""
        if self.puzzles.file is not None:
            raise ValueError(
                "puzzles.file fills the test split only, but a run needs train puzzles: "
                "drop it, and evaluate the run on the file with `deerstalker evaluate --puzzles FILE`"
            )
        self._check_abilities()
        self._check_critic()
        warm_start_puzzles = self.warm_start.puzzles if self.warm_start else 0
        taught_puzzles = self.distil.puzzles_per_round if self.distil else 0
        sizes = (
            (warm_start_puzzles, "warm_start.steps x warm_start.texts_per_step", self.puzzles.train, "puzzles.train"),
            (self.sample.puzzles_per_iteration, "sample.puzzles_per_iteration", self.puzzles.train, "puzzles.train"),
            (self.sample.stride, "the stride of sample.resample", self.puzzles.train, "puzzles.train"),
            (self.evaluate.puzzles, "evaluate.puzzles", self.puzzles.val, "puzzles.val"),
            (self.final.puzzles, "final.puzzles", self.puzzles.test, "puzzles.test"),
            (taught_puzzles, "the number of puzzles of distil", self.puzzles.train, "puzzles.train"),
            (self.pack.updates, "pack.updates", self.sample.puzzles_per_iteration, "sample.puzzles_per_iteration"),
        )
        too_many = [f"{name} is {value}, more than {of} ({most})" for value, name, most, of in sizes if value > most]
        if too_many:
            raise ValueError("; ".join(too_many))
        sampled, trained = self.sample.sampling.temperature, self.finetune.loss.temperature
        if sampled == 0 and self.finetune.loss.temperature_of == "sampler":
            raise ValueError(
                "sample.sampling.temperature is 0, so that all completions of a prompt are the same: set it above 0, "
                "and finetune.loss.temperature to the same"
            )
        if sampled != trained and self.finetune.loss.temperature_of == "sampler":
            raise ValueError(
                f"finetune.loss.temperature is {trained}, but sample.sampling.temperature is {sampled}: write the same "
                "for both; for a loss with a temperature of its own, set "
                'finetune.loss.temperature_of = "loss" and finetune.loss.old_logprobs = "trainer"'
            )
        if self.promote.mode == "greedy" and not self.evaluate.greedy:
            raise ValueError("promote.mode is greedy, but evaluate.greedy is false: set it to true, or mode to sampled")
        if self.teach is not None:
            self._check_teacher(self.teach)
        if self.sample.resample and self.sample.resample.grader != self.grade.grader:
            graders = self.sample.resample.grader, self.grade.grader
            raise ValueError(f"sample.resample.grader is '{graders[0]}', but grade.grader is '{graders[1]}'")
        rated = {RUN, *(model.name for model in self.rate.models)} if self.rate else {RUN}
        if unknown := sorted(self.sample.rated_names - rated):
            raise ValueError(
                f"sample.order or sample.where reads rates of {unknown[0]!r}, but [rate] names only "
                f"{', '.join(sorted(rated))}: add the model to rate.models"
            )

    def _check_critic(self) -> None:
        """Refuses settings of advantages that a critic replaces, and `positive_nll` without `pack.mark_right`."""
        advantage = self.grade.advantage
        if self.value is not None and (advantage.baseline, advantage.level) != ("none", "outcome"):
            raise ValueError(
                f"grade.advantage has baseline {advantage.baseline!r} and level {advantage.level!r}, but the baseline "
                "is the critic: set baseline and scale to none, and level to outcome"
            )
        reward, value = self.grade.reward, self.value
        least = -reward.truncation_penalty if reward.truncated in ("penalty", "soft_overlong") else 0.0
        if value is not None and value.head == "bounded" and least < value.reward_low:
            raise ValueError(
                f"value.reward_low is {value.reward_low:g}, but a completion that is cut can have the reward "
                f"{least:g}: lower reward_low, or set grade.reward.truncated to another rule"
            )
        if self.finetune.loss.positive_nll and not self.pack.mark_right:
            raise ValueError(
                "finetune.loss.positive_nll needs to know the right completions: set pack.mark_right = true"
            )

    def _check_ahead(self) -> None:
        """Refuses settings that need iteration i before i + 1 is sampled, and a loss that does not correct for it."""
        if self.phases:
            raise ValueError("iterate_ahead samples before it is known which of `phases` comes next: set it to 0")
        if self.rates_itself:
            raise ValueError(
                "iterate_ahead samples before this iteration's rates are known, but sample.order or sample.where reads "
                f"them (the rates of {RUN!r}): set it to 0, or read the rates of a model in rate.models"
            )
        if self.teach is not None:
            raise ValueError(
                "iterate_ahead samples from older weights than those that teach compares with: set it to 0"
            )
        loss = self.finetune.loss
        if loss.old_logprobs == "trainer" and loss.importance_correction == "none" and loss.function is None:
            raise ValueError(
                "iterate_ahead samples from older weights, and finetune.loss does not correct for them: drop "
                "importance_correction = 'none' and temperature_of = 'loss', or set old_logprobs to 'sampler'"
            )

    def _check_teacher(self, teach: TeachConfig) -> None:
        if teach.teacher == POLICY and teach.hint == "none":
            raise ValueError(
                "teach.teacher is 'policy' and teach.hint is 'none', so every verdict is 0: "
                "name another model, or set teach.hint to 'derivation'"
            )
        if self.value is not None:
            raise ValueError("teach and value both set the advantages of tokens: drop one of them")
        if self.finetune.loss.kind == "cross_entropy":
            raise ValueError("teach sets advantages, which the loss cross_entropy does not read: choose another loss")
        if self.sample.sampling.greedy:
            raise ValueError("teach needs sample.sampling.temperature above 0, so that the policy explores")

    def _check_abilities(self) -> None:
        """Refuses settings that need a capability or a grader that the environment lacks."""
        required = needs_of(self.grade)
        if self.warm_start and self.warm_start.text == "derivations":
            required.append(
                NeededCapability("warm_start.text = 'derivations'", WritesDerivations, "set it to 'answers'")
            )
        if self.warm_start and self.warm_start.text == "transcripts":
            required.append(NeededCapability("warm_start.text = 'transcripts'", AnswersCalls, "set it to 'answers'"))
        sampled = {
            "sample.sampling": self.sample.sampling,
            "evaluate.sampled": self.evaluate.sampled,
            "final.sampled": self.final.sampled,
        }
        for name, sampling in sampled.items():
            if sampling.tool_calls:
                required.append(
                    NeededCapability(f"{name}.tool_calls = {sampling.tool_calls}", AnswersCalls, "set it to 0")
                )
        for name, evaluation in (("evaluate", self.evaluate), ("final", self.final)):
            if any(isinstance(item, BestOf) and item.score == "statements" for item in evaluation.strategies):
                required.append(
                    NeededCapability(f"{name}.strategies: best_of by statements", Proves, "choose another score")
                )
        if self.warm_start:
            required.append(NeededCapability("warm_start", WritesAnswers, "drop the section, or choose another grader"))
        if self.distil:
            required += self.distil.needs()
        if self.teach and self.teach.hint == "derivation":
            required.append(NeededCapability("teach.hint = 'derivation'", WritesDerivations, "choose another teacher"))
        texts = [("distil.texts", self.distil.texts)] if self.distil else []
        sections = (("grade", self.grade), ("evaluate", self.evaluate), ("final", self.final), *texts)
        read_by = {name: section.grader for name, section in sections if section.grader != "strict"}
        if not (required or read_by):
            return
        puzzle = self.puzzles.puzzle
        for config in (puzzle,) if isinstance(puzzle, SourceConfig) else puzzle.tasks:
            if isinstance(config, PuzzleConfig | ZebraConfig):
                continue  # they have every capability, and loading their solvers would take 0.3 s
            chosen = environment.of(config)
            for need in required:
                if reason := missing(chosen, need.capability):
                    raise ValueError(f"{need.setting}: {reason}; {need.remedy}")
            for name, grader in read_by.items():
                if grader not in chosen.graders:
                    raise ValueError(
                        f"{name}.grader is '{grader}', but the environment '{chosen.name}' is graded by "
                        f"{' or '.join(chosen.graders)}: leave it out"
                    )


def _with_correction(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's plain settings; with `iterate_ahead` the loss corrects for older weights by default.

    With `old_logprobs = "sampler"`, the default of masked losses, the loss needs no factor, because its ratio compares
    with the older weights. A loss of the user's own gets both log-probabilities and corrects for them itself.
    """
    finetune = data.get("finetune", {})
    loss = finetune.get("loss", {}) if isinstance(finetune, dict) else None
    if not data.get("iterate_ahead") or not isinstance(loss, dict):
        return data
    by_ratio = loss.get("old_logprobs", "sampler" if loss.get("kind") == "masked" else "trainer") == "sampler"
    if by_ratio or loss.get("temperature_of") == "loss":
        return data
    correction = {} if loss.get("function") else {"importance_correction": "token_truncate"}
    corrected = {"old_logprobs": "trainer", **correction, **loss}
    return {**data, "finetune": {**finetune, "loss": corrected}}


def _with_seed(sections: dict[str, Any], seed: dict[str, int]) -> dict[str, Any]:
    """Returns the sections that are tables, with the seed where they name none."""
    return {name: {**seed, **section} for name, section in sections.items() if isinstance(section, dict)}
