"""The one flat configuration. Every field's doc gives its unit and the value that switches it off."""

from typing import Any, Literal

import chz

Backend = Literal["tinker", "skyrl-tx"]
LossFn = Literal["importance_sampling", "ppo", "cispo"]


@chz.chz
class Config:
    # -- backend
    backend: Backend = chz.field(
        default="tinker", doc="Tinker API to train on: tinker (cloud) or skyrl-tx (self-hosted)"
    )
    skyrl_tx_url: str | None = chz.field(
        default=None,
        doc="URL of the self-hosted server, http://localhost:8000; None = environment variable SKYRL_TX_URL",
    )
    tinker_base_url: str | None = chz.field(default=None, doc="URL of Tinker cloud; None = the SDK's own")
    model_name: str = chz.field(doc="base model: hub name or local directory, as the server knows it")
    lora_rank: int = chz.field(default=32, doc="LoRA rank")

    # -- tasks
    tasks_dir: str = chz.field(
        doc="folder of Harbor task directories; several: a,b; or git+URL[@REV][#FOLDER], NAME@VERSION of a registry"
    )
    tasks_registry: str | None = chz.field(
        default=None, doc="JSON file or URL of the registry of NAME@VERSION; None = Harbor's"
    )
    tasks_include: tuple[str, ...] = chz.field(
        default=(), doc="globs of NAME or SOURCE/NAME, a,b: only these tasks; () = all"
    )
    tasks_exclude: tuple[str, ...] = chz.field(
        default=(), doc="globs of NAME or SOURCE/NAME, a,b: not these tasks; () = none"
    )
    task_weights: dict[str, float] = chz.field(
        default_factory=dict,
        doc="task_weights.SOURCE=2: how often an epoch takes each task of a source (the last part of its path); 1",
    )
    curriculum_band: tuple[float, float] | None = chz.field(
        default=None,
        doc="LOW,HIGH: tasks whose mean reward was measured outside are taken seldom; None = all tasks alike",
    )
    allow_broken_tasks: bool = chz.field(
        default=False, doc="true = leave broken tasks out by name; false = refuse to start"
    )
    eval_split: float = chz.field(
        default=0.0, doc="share of the tasks held out for evaluation, whole families drawn by seed; 0 = none"
    )
    eval_tasks: tuple[str, ...] = chz.field(default=(), doc="names of held-out tasks, a,b,c; () = use eval_split")
    allow_family_overlap: bool = chz.field(
        default=False,
        doc="true = tasks of one family (same template or environment) may be trained on and held out; false = never",
    )
    eval_group_size: int = chz.field(default=1, doc="rollouts a held-out task at each evaluation")
    eval_every: int = chz.field(default=0, doc="steps between evaluations; 0 = start, each epoch and end only")
    eval_overlap: bool = chz.field(
        default=False,
        doc="true = an evaluation runs beside the next batch's trials, on the same weights; false = before them",
    )
    eval_temperature: float | None = chz.field(
        default=None, doc="sampling temperature in evaluation; None = temperature"
    )
    eval_timeout_sec: float = chz.field(
        default=86400.0, doc="seconds for one evaluation; then it is left out and the run goes on; 0 = no limit"
    )

    # -- batch
    batch_size: int = chz.field(default=8, doc="tasks a batch")
    group_size: int = chz.field(default=8, doc="rollouts a task")
    n_epochs: int | None = chz.field(
        default=None, doc="passes over the training tasks; None = as many as max_steps takes, 1 where that is 0"
    )
    max_steps: int = chz.field(default=0, doc="steps, fewer where n_epochs is given and ends earlier; 0 = no limit")
    seed: int = chz.field(default=0, doc="seed of task order, split, minibatches, sampling and LoRA initialisation")

    # -- environments
    n_parallel_envs: int = chz.field(default=8, doc="trials whose agent runs at once")
    n_warm_envs: int | None = chz.field(
        default=None,
        doc="environments started ahead of their turn; None = n_parallel_envs / 4 on docker, else 0",
    )
    n_parallel_builds: int = chz.field(default=2, doc="images built or pulled at once (docker)")
    n_parallel_starts: int = chz.field(default=8, doc="environments that start at once; fewer while starts are slow")
    n_parallel_verifiers: int | None = chz.field(default=None, doc="verifiers at once; None = n_parallel_envs")
    env_starts_per_sec: float = chz.field(default=0.0, doc="environments started a second, at most; 0 = no limit")
    env_outage_limit_sec: float = chz.field(
        default=900.0, doc="seconds to wait for a Docker daemon that went away; then the run stops (docker)"
    )
    environment_type: str = chz.field(
        default="docker", doc="Harbor environment: docker, daytona, modal, e2b, runloop, ..."
    )
    environment_kwargs: dict[str, Any] = chz.field(
        default_factory=dict, doc="passed to the environment: environment_kwargs.NAME=VALUE"
    )
    max_attempts: int = chz.field(default=3, doc="trials for one place in a group, when faults keep it from a grade")
    quarantine_after: int = chz.field(
        default=6, doc="faults of one task in a row, after which it is left out of the run; 0 = never"
    )
    outcome_policy: dict[str, Any] = chz.field(
        default_factory=dict,
        doc="outcome_policy.OUTCOME=train, mask, replace or a reward: what training does with trials that end so",
    )
    trial_timeout_sec: float = chz.field(default=3600.0, doc="seconds for a whole trial, start to reward; 0 = no limit")

    # -- agent (Terminus-2)
    max_turns: int = chz.field(default=50, doc="model calls a trial; 0 = no limit")
    max_tokens: int = chz.field(default=2048, doc="sampled tokens a turn, at most")
    temperature: float = chz.field(default=1.0, doc="sampling temperature in training")
    context_limit: int = chz.field(default=32000, doc="tokens of prompt and answer together")
    command_wait: Literal["prompt", "duration"] = chz.field(
        default="prompt",
        doc="a command is waited for to its shell's next prompt, the model's duration at most; or always all of that",
    )
    enable_summarize: bool = chz.field(default=False, doc="Terminus-2 summarises a full context and goes on")
    proactive_summarization_threshold: int = chz.field(
        default=8000, doc="free tokens below which Terminus-2 summarises; 0 = only when full"
    )
    enable_thinking: bool = chz.field(
        default=False, doc="enable_thinking of the chat template, where it has one (Qwen3)"
    )

    # -- learning
    learning_rate: float = chz.field(default=1e-4, doc="Adam step size at its peak")
    lr_schedule: Literal["constant", "linear", "cosine"] = chz.field(default="constant", doc="decay to 0 over the run")
    warmup_steps: int = chz.field(default=0, doc="optimizer steps of linear warm-up; 0 = none")
    adam_beta1: float = chz.field(default=0.9, doc="Adam beta1")
    adam_beta2: float = chz.field(default=0.95, doc="Adam beta2")
    adam_eps: float = chz.field(default=1e-12, doc="Adam epsilon")
    weight_decay: float = chz.field(default=0.0, doc="decoupled weight decay; 0 = none")
    grad_clip_norm: float = chz.field(default=0.0, doc="largest global gradient norm; 0 = no clipping")
    loss_fn: LossFn = chz.field(default="importance_sampling", doc="policy loss on the server")
    clip_low_threshold: float | None = chz.field(default=None, doc="ppo, cispo: lowest probability ratio; None = 0.8")
    clip_high_threshold: float | None = chz.field(default=None, doc="ppo, cispo: highest probability ratio; None = 1.2")
    loss_norm: Literal["token_mean", "sequence_mean", "token_sum"] = chz.field(
        default="token_mean",
        doc="length normalisation: mean over the batch's tokens, mean of trajectory means, or plain sum",
    )
    num_substeps: int = chz.field(default=1, doc="optimizer steps a batch, over shuffled minibatches")
    advantage_baseline: Literal["mean", "leave_one_out"] = chz.field(
        default="mean", doc="what a reward is compared with: its group's mean, or the mean of the others"
    )
    normalize_advantages_by_std: bool = chz.field(
        default=False, doc="divide a group's advantages by its standard deviation"
    )
    remove_constant_reward_groups: bool = chz.field(default=False, doc="leave out groups whose rewards are all equal")
    kl_penalty_coef: float = chz.field(default=0.0, doc="penalty per nat of log-ratio to the base model; 0 = off")

    # -- server
    sample_timeout_sec: float = chz.field(
        default=600.0, doc="seconds for one sampled answer with its retries; then its trial is replaced"
    )
    update_timeout_sec: float = chz.field(
        default=3600.0, doc="seconds for one forward_backward or optim_step; then the server counts as lost"
    )
    save_timeout_sec: float = chz.field(
        default=900.0, doc="seconds to make, save, publish or restore weights; then the server counts as lost"
    )
    server_silence_sec: float = chz.field(
        default=120.0, doc="seconds without an answer of the server's healthz, after which it counts as lost"
    )

    # -- run
    server_outage_limit_sec: float = chz.field(
        default=1800.0, doc="seconds to wait for a server that went away; then the run stops, to be resumed"
    )
    on_stop: Literal["cancel", "wait"] = chz.field(
        default="cancel", doc="Ctrl-C, SIGTERM, a limit of time or spending: running trials are cancelled, or let end"
    )
    max_wall_seconds: float = chz.field(
        default=0.0, doc="seconds after which this process stops, to be resumed; 0 = no limit"
    )
    max_trials: int = chz.field(
        default=0, doc="trials started over the whole run, evaluation and resumes included; then it stops; 0 = no limit"
    )
    max_usd: float = chz.field(
        default=0.0, doc="USD spent over the whole run at the price known for it, at which it stops; 0 = no limit"
    )
    max_tokens_total: float = chz.field(
        default=0.0,
        doc="tokens of prompts, answers and training data over the whole run, at which it stops; 0 = no limit",
    )
    max_container_hours: float = chz.field(
        default=0.0,
        doc="hours of all trials' environments added up, over the whole run, at which it stops; 0 = no limit",
    )
    prices: str | None = chz.field(
        default=None, doc="JSON file of prices by model, USD per million tokens; None = Tinker cloud's, as we know them"
    )
    server_usd_per_hour: float = chz.field(
        default=0.0, doc="what an hour of your own server costs, in USD (skyrl-tx); 0 = nothing"
    )
    plan: bool = chz.field(default=False, doc="true, or --dry-run: say what the run would do and cost, spend nothing")
    plan_json: str | None = chz.field(default=None, doc="with plan=true: a file for the same as JSON; None = no file")
    logs_dir: str = chz.field(default="./runs", doc="parent folder of run directories")
    run_name: str | None = chz.field(
        default=None,
        doc="name of the run directory, which is continued where it exists; None = wandb_name or model, and the time",
    )
    resume: str | None = chz.field(default=None, doc="run directory to continue; None = new run")
    save_every: int = chz.field(default=10, doc="steps between checkpoints; 0 = only at the end")
    keep_checkpoints: int = chz.field(default=3, doc="newest checkpoints kept on the server; 0 = all")
    keep_every: int = chz.field(default=0, doc="checkpoints of every n-th step are kept too; 0 = none")
    keep_best: int = chz.field(
        default=0,
        doc="so many of the checkpoints at evaluated steps, best mean reward first, are kept too; 0 = none",
    )
    display: Literal["auto", "plain", "quiet"] = chz.field(
        default="auto",
        doc="auto = live view on a terminal, lines elsewhere; plain = lines; quiet = errors, run directory, summary",
    )
    wandb_project: str | None = chz.field(default=None, doc="Weights & Biases project; None = off")
    wandb_name: str | None = chz.field(default=None, doc="Weights & Biases run name; None = the run directory's")
