"""Prompts are scored without logits of a whole prompt, in few shapes, bounded by tokens; answers come from seats.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample pads every wave to the same number of sequences and to the
longest prompt of a call; skyrl/tx/utils/generator.py, GeneratorMixin._prefill_and_decode computes the logits of all
tokens of a wave at once where one prompt is to be scored (37 GiB for 16 x 8,192 tokens and 151,936 words), and a
key-value cache that mere scoring has no use for.
Here mere scoring (one token is sampled) is a program of its own, as a forward pass; longer answers with scored prompts
are a scoring, and seats (engine_seats).
"""

# pyright: reportMissingImports=false, reportCallIssue=false
import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.backends import jax as backend
from skyrl.tinker import types
from skyrl.tx.utils import generator
from skyrl.tx.utils.generator import GenerateOutput, GeneratorMixin

from repairs import engine_shapes, engine_top_prompts
from repairs.engine_programs import TooLarge
from repairs.engine_seats import rows_of
from repairs.engine_shapes import filled_rows, full_rows, parts, power_of_two, score_length
from repairs.engine_target_prompts import named

stock_generate = GeneratorMixin.generate


@partial(jax.jit, static_argnames=("max_top_k", "use_top_p", "best"))
def score(
    model: Any,
    ids: jax.Array,
    mask: jax.Array,
    adapters: jax.Array,
    temperatures: jax.Array,
    keys: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    max_top_k: int,
    use_top_p: bool,
    best: int,
) -> tuple[jax.Array, ...]:
    """Log-probabilities (B, T-1) of prompts (B, T), and the first token that a wave would sample, with its own.

    Then what engine_top_prompts gives of the likeliest `best` tokens after each.
    """
    hidden = model(ids, attention_mask=mask, adapter_indices=adapters, is_training=True).last_hidden_state
    targets = jnp.roll(ids, -1, axis=1)  # the last column's value is left out
    prompts = model.compute_logprobs(hidden, targets, adapters)[:, :-1]
    last = jnp.take_along_axis(hidden, (mask.sum(axis=1) - 1)[:, None, None], axis=1)
    logits = model.compute_logits(last, adapters)[:, 0]
    scaled = logits / jnp.where(temperatures == 0, 1.0, temperatures)[:, None]
    if max_top_k > 0:
        scaled = generator.apply_top_k_batch(scaled, top_k, max_top_k)
    if use_top_p:
        scaled = generator.apply_top_p_batch(scaled, top_p)
    drawn = jax.vmap(lambda key, row: jax.random.categorical(jax.random.split(key)[1], row))(keys, scaled)
    tokens = jnp.where(temperatures == 0, jnp.argmax(logits, axis=-1), drawn)
    likeliest = engine_top_prompts.likeliest(model, hidden, adapters, best)
    return prompts, tokens, model.logits_to_logprobs(logits, tokens), likeliest


GeneratorMixin._score = staticmethod(score)


def score_prompts(self: Any, ids: jax.Array, mask: jax.Array, params: list, adapters: jax.Array) -> GenerateOutput:
    """What generate returns for one token each, prompts scored."""
    top_k = jnp.array([one.top_k for one in params], jnp.int32)
    top_p = jnp.array([one.top_p for one in params], jnp.float32)
    keys = jax.vmap(jax.random.PRNGKey)(jnp.array([one.seed for one in params]))
    flags = max([0, *(one.top_k for one in params)]), any(one.top_p < 1 for one in params)
    temperatures = jnp.array([one.temperature for one in params])
    asked = engine_top_prompts.asked
    found = self._score(self, ids, mask, adapters, temperatures, keys, top_k, top_p, *flags, asked.best)
    scores, tokens, logprobs, asked.found, used = jax.device_get((*found, mask))
    named.find(self, ids, mask, adapters)
    stops = [token in (one.stop_tokens or []) for token, one in zip(tokens.tolist(), params, strict=True)]
    return GenerateOutput(
        generated_ids=[[token] for token in tokens.tolist()],
        stop_reasons=["stop" if stop else "length" for stop in stops],
        logprobs=[[value] for value in logprobs.tolist()],
        prompt_logprobs=[row[: count - 1].tolist() for row, count in zip(scores, used.sum(axis=1), strict=True)],
    )


def generate(self: Any, *arrays: jax.Array, prompt_logprobs: bool = False, **others: Any) -> GenerateOutput:
    """Wraps GeneratorMixin.generate: where prompts are scored, it has one token for each."""
    if not prompt_logprobs:
        return stock_generate(self, *arrays, **others)
    return score_prompts(self, *arrays, others["sampling_params"], others["adapter_indices"])


def tokens_of(model_input: types.ModelInput) -> int:
    return sum(len(chunk.tokens) for chunk in model_input.chunks if isinstance(chunk, types.EncodedTextChunk))


def only_scores(batch: types.PreparedSampleBatch, rows: list[int]) -> types.PreparedSampleBatch:
    """The batch with these rows, each of them as a request by its number, for one token each."""
    names = [name for name in type(batch).model_fields if name.startswith("all_")]
    lists = {name: [getattr(batch, name)[row] for row in rows] for name in names}
    lists["all_sampling_params"] = [
        one if one.max_tokens == 1 else one.model_copy(update={"max_tokens": 1, "stop_strings": None})
        for one in lists["all_sampling_params"]
    ]
    slices = [(str(row), "", place, place + 1, True, 0) for place, row in enumerate(rows)]
    return batch.model_copy(update=lists | {"request_batch_slices": slices, "needs_prompt_logprobs": True})


def scores(self: Any, batch: types.PreparedSampleBatch, left: set[int], stock_sample: Any) -> dict[int, Any]:
    """Answers of one token with scored prompts, by row. Raises TooLarge."""
    backend.round_up_seq_len = score_length
    done: dict[int, types.SampleOutput] = {}
    best: dict[int, list[Any]] = {}  # of rows whose likeliest tokens were asked for
    targets: dict[int, Any] = {}
    tokens = {row: tokens_of(batch.all_model_inputs[row]) for row in sorted(left)}
    most = self.config.sample_max_num_sequences
    most = most if most > 0 else power_of_two(max(1, len(left)))
    while tokens:
        part = parts(tokens, lambda length: full_rows(length, most), score_length)[0]
        seated = copy.copy(self)
        filled = filled_rows(len(part.rows), part.length, part.filled)
        seated.config = self.config.model_copy(update={"sample_max_num_sequences": filled})
        engine_top_prompts.ask(batch, part.rows)
        named.ask(batch, part.rows)
        try:
            found = stock_sample(seated, only_scores(batch, part.rows))
            engine_top_prompts.asked.take(part.rows, batch, best)
            named.take(part.rows, targets)
        except TooLarge:
            if filled == 1:
                raise
            engine_shapes.pass_tokens = filled * part.length // 2
            continue
        for row in part.rows:
            more = {"topk_prompt_logprobs": best.get(row), "target_prompt_logprobs": targets[row]}
            done[row] = found[str(row)].model_copy(update=more)
            del tokens[row]
    return done


def on_seats(stock_sample: Any) -> Any:
    def sample(self: Any, prepared_batch: types.PreparedSampleBatch) -> dict:
        """Wraps JaxBackendImpl.sample, which then scores prompts. Raises TooLarge."""
        slices, params = prepared_batch.request_batch_slices, prepared_batch.all_sampling_params
        scored = scores(self, prepared_batch, {entry[2] for entry in slices if entry[4]}, stock_sample)
        rows = dict(enumerate(rows_of(prepared_batch)))
        sequences = {row: one.sequences[0] for row, one in scored.items() if params[row].max_tokens == 1}
        self.seats.run([one for row, one in rows.items() if row not in sequences])
        sequences = {row: sequences.get(row) or one.sequence() for row, one in rows.items()}
        found = {}
        for key, _, start, end, is_scored, _ in slices:
            own = [sequences[row] for row in range(start, end)]
            asked = ("prompt_logprobs", "topk_prompt_logprobs", "target_prompt_logprobs") if is_scored else ()
            found[key] = types.SampleOutput(sequences=own, **{name: getattr(scored[start], name) for name in asked})
        return found

    return sample


def apply() -> None:
    GeneratorMixin.generate = generate
    backend.JaxBackendImpl.sample = on_seats(backend.JaxBackendImpl.sample)
