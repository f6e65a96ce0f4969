"""The recipes of the cookbook that run_cookbook_recipes.sh runs, and what each is given beside its defaults.

python -m scripts.cookbook.recipes NAME ... refuses names that are no recipe's.
"""

import sys
from dataclasses import dataclass

PLAYER, TEACHER = "Qwen/Qwen3.5-9B", "Qwen/Qwen3.6-35B-A3B"
STEPS = 2
FEW_GROUPS = ("groups_per_batch=4", "group_size=4")
SHORT = (*FEW_GROUPS, "max_tokens=32")
SMALL_RL = ("group_size=2", "batch_size=2")
MATH = (*SHORT, "loss_fn=importance_sampling", "eval_every=1")
DISTILLED = (*SHORT, "lora_rank=16")


@dataclass(frozen=True)
class Recipe:
    """A published module and its arguments."""

    name: str
    module: str  # below tinker_cookbook.recipes, or of this repository with a dot before it
    settings: tuple[str, ...] = ()
    model: str = PLAYER  # the one model of the server
    model_field: str = "model_name"  # that names it; empty where the recipe itself does
    logs: tuple[str, ...] = ()  # folders of metrics below the folder of runs; otherwise its own, as log_path
    makes: str = ""  # a file below the folder of runs that it writes instead of metrics
    steps: int = STEPS
    fault: str = ""  # of the cookbook's own, with file and line, at which the recipe ends
    says: str = ""  # what it prints then


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("math_rl", "math_rl.train", ("env=gsm8k", *MATH)),
        Recipe("math_rl_async", "math_rl.train", ("env=gsm8k", *MATH, "max_steps_off_policy=1")),
        Recipe(
            "math_rl_stream",
            "math_rl.train",
            (
                *("env=arithmetic", *MATH, "stream_minibatch_config.groups_per_batch=4"),
                "stream_minibatch_config.num_minibatches=2",
            ),
        ),
        Recipe(
            "rl_basic",
            "rl_basic",
            (
                *("dataset_builder=tinker_cookbook.recipes.math_rl.math_env:Gsm8kDatasetBuilder", "max_tokens=32"),
                *("dataset_builder.batch_size=4", "dataset_builder.group_size=4"),
                *("dataset_builder.renderer_name=qwen3_5", f"dataset_builder.model_name_for_tokenizer={PLAYER}"),
            ),
        ),
        Recipe("sl_basic", "sl_basic"),
        Recipe("chat_sl", "chat_sl.train", ("batch_size=8", "eval_every=1")),
        Recipe("dpo", "preference.dpo.train", ("batch_size=8",)),
        Recipe("shorter", "preference.shorter.train", (*SMALL_RL, "max_tokens=32")),
        Recipe(
            "rlhf_pipeline",
            "preference.rlhf.rlhf_pipeline",
            (*("short_name=player", "batch_size=4", "rl_max_tokens=32", "eval_every=1"),),
            model_field="base_model",
            logs=("rlhf-player/sft", "rlhf-player/rm", "rlhf-player/rl"),
        ),
        Recipe("off_policy", "distillation.off_policy_reasoning", ("batch_size=8", "buffer_size=64", "lora_rank=16")),
        Recipe("on_policy", "distillation.on_policy_distillation", (*DISTILLED, f"teacher_model={PLAYER}")),
        Recipe(
            "several_teachers",
            "distillation.on_policy_multi_teacher",
            (
                *("group_size=4", "max_tokens=32", "lora_rank=16"),
                *("deepmath_groups_per_batch=2", "tulu3_groups_per_batch=2"),
                *(f"deepmath_teacher_model={PLAYER}", f"tulu3_teacher_model={PLAYER}"),
            ),
        ),
        Recipe("sdft", "sdft.train", ("eval_every=0",)),
        Recipe(
            "sdft_evaluated",
            "sdft.train",
            fault="`distillation/sdft.py:907` evaluates a dataset whose `get_batch` (`recipes/sdft/datasets.py:58`) "
            "gives three lists, not groups",
            says="AttributeError: 'list' object has no attribute 'make_envs'",
        ),
        Recipe(
            "prompt_distillation_data",
            "prompt_distillation.create_data",
            model=TEACHER,
            model_field="",
            makes="prompt_distillation/data/prompt_distillation_lang.jsonl",
        ),
        Recipe("prompt_distillation", "prompt_distillation.train", ("batch_size=2",), model=TEACHER),
        Recipe(
            "rubric_data",
            "rubric.generate_data",
            model_field="",
            makes="../data/tinker_cookbook/example_data/example_rubric_train.jsonl",
        ),
        Recipe(
            "rubric",
            "rubric.train",
            (
                *("groups_per_batch=4", "loss_fn=importance_sampling", "eval_every=0"),
                f"grader_llm_name={PLAYER}",
            ),
        ),
        Recipe(
            "prometheus",
            "rubric.prometheus_experimental",
            (
                *("groups_per_batch=2", "loss_fn=importance_sampling", "eval_every=0"),
                f"grader_llm_name={PLAYER}",
            ),
        ),
        Recipe(
            "numerics",
            "rl_numerics_check.train",
            (
                *(*FEW_GROUPS, "max_tokens=64", "task.page_chars=200", "task.num_pages_min=2", "task.num_pages_max=2"),
                "renderer_name=qwen3_5_disable_thinking",
            ),
        ),
        Recipe(
            "forecasting",
            "forecasting.train",
            (
                *(*FEW_GROUPS, "data_path=prophet-arena.csv", "max_tokens=32", "validation_group_size=1"),
                *("max_validation_questions=4", "eval_every=1", "renderer_name=qwen3_5_disable_thinking"),
            ),
        ),
        Recipe(
            "decisions",
            "decisions.forecasting",
            ("data_path=prophet-arena.csv", "batch_size=8", "max_validation_questions=8", "eval_every=1"),
        ),
        Recipe(
            "sweep",
            "chat_sl.sweep",
            (
                *("base.batch_size=8", "training_budget_examples=16", "learning_rates=[1e-4,1e-3]", "lora_ranks=[8]"),
                "sweep_dir=../runs/sweep",
            ),
            model_field="base.model_name",
            makes="sweep/recommendations.json",
        ),
        Recipe("guess_number", "multiplayer_rl.guess_number.train", (*SMALL_RL, "eval_every=0")),
        Recipe("twenty_questions", "multiplayer_rl.twenty_questions.train", (*SMALL_RL, "eval_every=0")),
        Recipe(
            "text_arena",
            "multiplayer_rl.text_arena.train",
            ("batch_size=8", "num_train_datapoints=64", "num_test_datapoints=8", "eval_every=1"),
        ),
        Recipe("code_rl", ".sandbox", (*FEW_GROUPS, "max_tokens=64", "eval_every=0")),
        Recipe(
            "harbor_distillation",
            ".sandbox",
            (
                *("group_size=2", "groups_per_batch=1", "max_turns=3", "max_tokens=64", "eval_every=0"),
                f"teacher_model={PLAYER}",
            ),
        ),
        Recipe(
            "harbor_rl",
            ".sandbox",
            ("group_size=8", "groups_per_batch=1", "max_turns=3", "max_tokens=64", "eval_every=0"),
        ),
    )
}

WRITE = "--write"


def chosen(arguments: list[str]) -> list[Recipe]:
    """The recipes that are named, all where none is. Ends the process with a line at another name."""
    names = [name for name in arguments if name != WRITE]
    if wrong := [name for name in names if name not in RECIPES]:
        sys.exit(f"error: {wrong[0]}: no recipe; there are {', '.join(RECIPES)}")
    return [RECIPES[name] for name in names or RECIPES]


if __name__ == "__main__":
    chosen(sys.argv[1:])
