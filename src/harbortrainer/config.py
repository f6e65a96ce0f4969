"""The flat configuration of a run. A field holds all facts on its setting; docs/settings.md is generated from them."""

import os
from pathlib import Path
from typing import Any, Literal

import chz

from harbortrainer.setting import ABOVE_0, BELOW_1, COUNTED, FROM_0, Check, Resume, field, settings

Auto = Literal["auto"]
AUTO: Auto = "auto"
Backend = Literal["tinker", "skyrl-tx"]
ToolFormat = Literal["template", "hermes"]
LossFn = Literal["importance_sampling", "ppo", "cispo", "dppo"]
LossNorm = Literal["token_mean", "sequence_mean", "token_sum"]
Divergence = Literal["tv", "kl"]
CLIP_DEFAULTS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}  # Tinker's; always sent: no server uses others
BASELINES = ("mean", "leave_one_out", "none")

SEED = Check(lambda value: 0 <= value < 2**63, "must be 0 or more, of 63 bits at most")
FOLDER = Check(lambda name: bool(name) and _may_be_folder(name), "names no folder; give one, . for this one")
PROJECT = Check(lambda name: not {*r"/\#?%:"} & {*name}, r"a project's name has none of / \ # ? % :")
ABOVE_0_OR_AUTO = Check(lambda value: value == AUTO or value > 0, "must be above 0, or auto")
JOB = "harbor:"  # in data: before the folder of a job
ADDRESS, FIXED, NEXT_STEP = Resume.ADDRESS, Resume.FIXED, Resume.NEXT_STEP
LENGTH, TASKS = Resume.LENGTH, Resume.TASKS


def _may_be_folder(name: str) -> bool:
    path = Path(name).expanduser().absolute()
    return next(one for one in (path, *path.parents) if os.path.exists(one)).is_dir()


@chz.chz
class ServerSettings:
    """The Tinker API that a command talks to."""

    # -- backend
    backend: Backend = field("tinker", "Tinker API: tinker (cloud) or skyrl-tx (self-hosted)", resume=FIXED)
    skyrl_tx_url: str | None = field(
        None, "URL of the self-hosted server, http://localhost:8000; None = environment variable SKYRL_TX_URL"
    )
    tinker_base_url: str | None = field(None, "URL of Tinker cloud; None = the SDK's own")


@chz.chz
class ModelSettings(ServerSettings):
    """The settings that every command with a policy shares: training, fine-tuning and evaluation."""

    # -- model
    context_limit: int = field(32000, "most tokens of prompt and answer together", check=ABOVE_0, resume=NEXT_STEP)
    enable_thinking: bool = field(False, "enable_thinking of chat templates that have it (Qwen3)", resume=FIXED)
    tool_format: ToolFormat = field(
        "template",
        "how tools are declared to the model: template = as its chat template does; hermes = in the system message, "
        "for templates that render no tools",
        resume=FIXED,
    )

    # -- server
    outage_limit_sec: float = field(
        1800.0, "seconds to wait for a lost server or Docker daemon; then the run stops", check=ABOVE_0
    )

    # -- output
    logs_dir: str = field("./runs", "parent folder of run directories", check=FOLDER, resume=ADDRESS)


@chz.chz
class RunSettings(ModelSettings):
    """The settings that every run which trains an adapter shares."""

    # -- model
    model_name: str = field(doc="base model as the server names it: hub name or local directory", resume=FIXED)
    lora_rank: int = field(32, "LoRA rank", check=ABOVE_0, resume=FIXED)
    init_from: str | None = field(
        None,
        "start from saved weights: RUN_DIR (newest checkpoint), RUN_DIR@STEP, a tinker:// path of a training state "
        "or, on a self-hosted server, the folder of a PEFT adapter; None = fresh adapter from seed",
        resume=FIXED,
    )

    # -- batch
    n_epochs: int | None = field(
        None,
        "passes over the training tasks or conversations; None = as many as max_steps needs, 1 without it",
        check=ABOVE_0,
        resume=LENGTH,
    )
    max_steps: int = field(
        0, "most steps; a given n_epochs may end the run earlier; 0 = no limit", check=FROM_0, resume=LENGTH
    )
    seed: int = field(0, "seed of task order, split, minibatches, sampling and LoRA", check=SEED, resume=FIXED)

    # -- learning
    learning_rate: float = field(1e-4, "peak step size of Adam", check=ABOVE_0, resume=NEXT_STEP)
    lr_schedule: Literal["constant", "linear", "cosine"] = field(
        "constant", "learning rate over the run: constant, or linear or cosine decay to 0", resume=NEXT_STEP
    )
    warmup_steps: int = field(0, "optimizer steps of linear warm-up; 0 = none", check=FROM_0, resume=NEXT_STEP)
    grad_clip_norm: float = field(0.0, "largest global gradient norm; 0 = no clipping", check=FROM_0, resume=NEXT_STEP)

    # -- limits
    max_wall_sec: float = field(0.0, "seconds after which this process stops; 0 = no limit", check=FROM_0)
    max_usd: float = field(0.0, "USD of the whole run at which it stops; 0 = no limit", check=FROM_0)
    prices: str | None = field(
        None, "JSON file of prices, by model or of a server's hour; None = built-in prices of Tinker cloud"
    )

    # -- output
    run_name: str | None = field(
        None, "name of the run directory, continued where it exists; None = generated", resume=ADDRESS
    )
    resume: str | None = field(None, "run directory to continue; None = new run", resume=ADDRESS)
    save_every: int = field(10, "steps between checkpoints; 0 = only one at the end", check=FROM_0)
    keep_checkpoints: int = field(
        3, "newest checkpoints to keep on the server, beside the one that evaluated best; 0 = all", check=FROM_0
    )
    wandb_project: str | None = field(None, "Weights & Biases project; None or empty = off", check=PROJECT)
    wandb_name: str | None = field(None, "run name at wandb_project; None = name of the run directory")


@chz.chz
class TrialSettings(ModelSettings):
    """The settings that training and evaluation share."""

    # -- tasks
    tasks_dir: str = field(
        doc="folder of Harbor tasks, git+URL[@REV][#FOLDER], NAME@VERSION or ORG/NAME@VERSION of Harbor's registry, or "
        "tau:DOMAIN[@SIDE], MODULE:VENUE:NAME of your own; several: a,b",
        resume=TASKS,
    )
    tasks_include: tuple[str, ...] = field(
        (), "take only these tasks: globs of NAME or SOURCE/NAME, a,b; empty = all", resume=TASKS
    )
    tasks_exclude: tuple[str, ...] = field(
        (), "leave out these tasks: globs of NAME or SOURCE/NAME, a,b; empty = none", resume=TASKS
    )

    # -- environments
    n_parallel_envs: int = field(8, "agents, and verifiers, that run at once", check=ABOVE_0)
    images: str | None = field(
        None,
        "REGISTRY/PREFIX that task images are pulled from, and pushed to once made; None = each machine makes them",
    )
    base_images: str | None = field(
        None,
        "file of lines FROM_IMAGE OTHER_IMAGE: bases to take for those of Dockerfiles, as a mirror's; None = none",
        resume=NEXT_STEP,
    )
    images_gb: float | Auto = field(
        AUTO,
        "GB of task images on Docker's disk, beyond which those needed last go; auto = all but a reserve of it",
        check=ABOVE_0_OR_AUTO,
    )
    environment_type: str = field(
        "docker",
        "Harbor environment: docker, daytona, modal, e2b, ..., or MODULE:CLASS",
        resume=NEXT_STEP,
    )
    environment_kwargs: dict[str, Any] = field(
        {}, "options of the environment, environment_kwargs.NAME=VALUE", resume=NEXT_STEP
    )
    trial_timeout_sec: float = field(
        3600.0, "seconds for a trial before its verification; 0 = none", check=FROM_0, resume=NEXT_STEP
    )

    # -- agent
    agent: str = field(
        "terminus-2",
        "who acts: terminus-2, mini-swe-agent, codex, opencode, qwen-coder, claude-code, or MODULE:CLASS "
        "or FILE.py:CLASS of an agent of Harbor's; a,b = one of them for each group of trials",
        resume=FIXED,
    )
    agent_kwargs: dict[str, Any] = field({}, "Harbor's options of the agent, agent_kwargs.NAME=VALUE", resume=FIXED)
    agents_dir: str | None = field(
        None,
        "folder of agents' programs (scripts/agents/pack), mounted read-only; None = they are in the tasks' images",
        resume=FIXED,
    )
    max_turns: int = field(50, "most answers of the model in a trial; 0 = no limit", check=FROM_0, resume=NEXT_STEP)
    max_tokens: int = field(2048, "most sampled tokens of a turn", check=ABOVE_0, resume=NEXT_STEP)
    enable_summarize: bool = field(False, "true = the agent may summarise a full context", resume=NEXT_STEP)
    proactive_summarization_threshold: int = field(
        8000, "free tokens below which Terminus-2 summarises; 0 = only when full", check=FROM_0, resume=NEXT_STEP
    )

    # -- user
    user: str | None = field(
        None,
        "simulated user of tasks that have one: scripted, base (the frozen base model through the same Tinker API), or "
        "a JSON file of a model behind an OpenAI-compatible API (docs/other_models.md); None = the tasks' own",
        resume=NEXT_STEP,
    )

    # -- server


@chz.chz
class Config(TrialSettings, RunSettings):
    """A training run."""

    @property
    def local_environments(self) -> bool:
        """Whether containers run on this machine's daemon, not at a service."""
        return self.environment_type == "docker"

    @property
    def by_rewards(self) -> bool:
        """Whether rewards teach; else the KL penalty alone does."""
        return self.advantage != "none"

    @property
    def own_advantage(self) -> bool:
        """Whether a function of the user's computes advantages."""
        return ":" in self.advantage

    # -- environments
    hosts: str = field("none", "where trials run: none = on this machine; ray = on a Ray cluster; MODULE:NAME")

    # -- tasks
    task_weights: dict[str, float] = field(
        {}, "how often an epoch takes each task of a source, task_weights.SOURCE=2; else once", resume=FIXED
    )
    difficulty: str | None = field(
        None,
        "FILE[@LOW,HIGH] of `tasks measure`: train on tasks whose measured mean reward is from LOW to HIGH, 0.1 to 0.9 "
        "without them; None = on all",
        resume=FIXED,
    )

    # -- evaluation
    family: str | None = field(
        None,
        "regular expression of task names whose first group is the task's family; None = names in series (X_easy and "
        "X_hard, X-1 and X-2) where most are so; empty = none",
        resume=FIXED,
    )
    eval_split: float = field(
        0.0, "share of the tasks to hold out, in whole families drawn by seed; 0 = none", check=BELOW_1, resume=FIXED
    )
    eval_tasks: tuple[str, ...] = field(
        (),
        "names of the held-out tasks, a,b,c; @test = those that their data sets hold out; empty = use eval_split",
        resume=FIXED,
    )
    allow_family_overlap: bool = field(
        False, "true = a family (one template or environment) may have tasks on both sides of the split", resume=FIXED
    )
    eval_group_size: int = field(1, "trials of each held-out task in an evaluation", check=COUNTED, resume=NEXT_STEP)
    eval_every: int = field(0, "steps between evaluations; 0 = at start, after each epoch and at the end", check=FROM_0)

    # -- batch
    batch_size: int = field(8, "tasks in a batch", check=COUNTED, resume=FIXED)
    group_size: int = field(8, "trials of each task in a batch, its group", check=COUNTED, resume=FIXED)
    oversample_max: int = field(
        0,
        "most groups that a step runs beyond batch_size to get batch_size groups whose rewards differ; constant groups "
        "are left out of training then; 0 = none",
        check=FROM_0,
        resume=FIXED,
    )
    temperature: float = field(1.0, "sampling temperature", check=ABOVE_0, resume=NEXT_STEP)
    outcome_policy: dict[str, Any] = field(
        {},
        "treatment of trials by outcome, outcome_policy.OUTCOME=train, mask, replace or a reward",
        resume=NEXT_STEP,
    )

    max_steps_off_policy: int = field(
        0,
        "most steps between the weights that sampled a turn and the step that trains on it; 0 = sampling and updates "
        "take turns, K = trials go on during updates",
        check=FROM_0,
        resume=FIXED,
    )

    # -- learning
    loss_fn: LossFn = field(
        "importance_sampling", "policy loss: importance_sampling, ppo, cispo, or dppo", resume=NEXT_STEP
    )
    dppo: tuple[Divergence, float] = field(
        ("tv", 0.1),
        "DIVERGENCE,MOST: divergence of a token's probability under trainer and sampler above which dppo moves it no "
        "further; tv = total variation, kl",
        check=Check(lambda given: given[1] >= 0, "must be tv or kl and a number from 0, such as tv,0.1"),
        resume=NEXT_STEP,
    )
    clip_thresholds: tuple[float, float] | None = field(
        None,
        "LOW,HIGH: clips the probability ratio, ppo and cispo; None = 0.8,1.2",
        check=Check(lambda clip: 0 <= clip[0] <= 1 <= clip[1], "two ratios, 1 between them (0.8,1.2 is usual)"),
        resume=NEXT_STEP,
    )
    loss: str | None = field(
        None,
        "your function of a minibatch's sequences, MODULE:FUNCTION or FILE.py:FUNCTION: the whole loss, by torch; "
        "None = loss_fn",
        resume=FIXED,
    )
    loss_norm: LossNorm = field(
        "token_mean", "token_mean, sequence_mean (mean of trajectory means) or token_sum", resume=NEXT_STEP
    )
    num_substeps: int = field(1, "optimizer steps a batch, over shuffled minibatches", check=ABOVE_0, resume=NEXT_STEP)
    advantage: str = field(
        "mean",
        "of a trajectory: mean = its reward less the group's mean; leave_one_out = less the mean of the others; none = "
        "rewards teach nothing, kl_penalty_coef or observation_loss_coef alone does; MODULE:FUNCTION or "
        "FILE.py:FUNCTION = yours of a group's rewards and trajectories, one for each, or for each of its turns",
        check=Check(
            lambda given: given in BASELINES or ":" in given, f"give {', '.join(BASELINES)} or MODULE:FUNCTION"
        ),
        resume=FIXED,
    )
    normalize_advantages_by_std: bool = field(False, "divide advantages by their group's std", resume=NEXT_STEP)
    remove_constant_reward_groups: bool = field(False, "leave out groups whose rewards are all equal", resume=NEXT_STEP)
    observation_loss_coef: float = field(
        0.0,
        "factor of the mean cross-entropy of what the environment answered; 0 = off, 0.05 is usual",
        check=FROM_0,
        resume=NEXT_STEP,
    )
    kl_penalty_coef: float = field(
        0.0, "penalty per nat of log-ratio to kl_reference; 0 = off", check=FROM_0, resume=NEXT_STEP
    )
    kl_reference: str = field(
        "base",
        "weights for kl_penalty_coef: base (base model), start (this run's start), or a teacher: RUN_DIR, RUN_DIR@STEP "
        "or a tinker:// path of a training state",
        resume=NEXT_STEP,
    )

    reward: str | None = field(
        None,
        "your function of a graded trajectory, MODULE:FUNCTION or FILE.py:FUNCTION: what is added to its reward in "
        "training; None = nothing",
        resume=FIXED,
    )

    # -- judge
    judge: str | None = field(
        None,
        "JSON file of a model that judges trials of training, with its weight and taxonomy (docs/other_models.md); "
        "with a taxonomy wandb_project ends in _with_taxonomy_feedback; None = rewards are the verifier's alone",
        resume=NEXT_STEP,
    )

    # -- limits
    max_trials: int = field(0, "trials of the whole run after which it stops; 0 = no limit", check=FROM_0)


SETTINGS = settings(Config)
FIELDS = tuple(SETTINGS)
