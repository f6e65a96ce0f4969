"""Waves of samples have few shapes, bounded by tokens, and prompts are scored without logits of a whole prompt.

Upstream: skyrl/backends/jax.py, JaxBackendImpl.sample pads every wave to the same number of sequences and to the
longest prompt of a call; skyrl/tx/utils/generator.py, GeneratorMixin._prefill_and_decode computes the logits of all
tokens of a wave at once where one prompt is to be scored (37 GiB for 16 x 8,192 tokens and 151,936 words), and a
key-value cache that mere scoring has no use for.
Here mere scoring (one token is sampled) is a program of its own, as a forward pass; longer answers with scored prompts
are a scoring and a wave. A wave has as many seats as its keys and values have room, or a quarter where that is enough.
"""

# pyright: reportMissingImports=false
import copy
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from skyrl.backends import jax as backend
from skyrl.tinker import types
from skyrl.tx.utils import generator
from skyrl.tx.utils.generator import GenerateOutput, GeneratorMixin

from repairs import engine_load, engine_shapes, engine_top_prompts
from repairs.engine_programs import TooLarge
from repairs.engine_shapes import Part, filled_rows, full_rows, parts, power_of_two, prompt_length, room_for

QUARTER = 4
state_tokens = 0  # in whose room fit the states of linear attention of a sequence; engine_memory sets it
wave_tokens = 0  # of prompts and answers that a wave has room for; 0: no limit; engine_memory sets it
stock_generate = GeneratorMixin.generate


def full_seats(room: int, most: int) -> int:
    """Seats of a full wave with `room` tokens each."""
    fitting = max(1, wave_tokens // (room + state_tokens)) if wave_tokens else most
    return most if fitting >= most else power_of_two(fitting + 1) // 2


def seats_for(rows: int, full: int) -> int:
    quarter = -(-full // QUARTER)
    return quarter if rows <= quarter else full


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
    stops = [token in (one.stop_tokens or []) for token, one in zip(tokens.tolist(), params, strict=True)]
    return GenerateOutput(
        generated_ids=[[token] for token in tokens.tolist()],
        stop_reasons=["stop" if stop else "length" for stop in stops],
        logprobs=[[value] for value in logprobs.tolist()],
        prompt_logprobs=[row[: count - 1].tolist() for row, count in zip(scores, used.sum(axis=1), strict=True)],
    )


def generate(
    self: Any,
    input_ids: jax.Array,
    attention_mask: jax.Array,
    *,
    sampling_params: list[types.SamplingParams],
    adapter_indices: jax.Array | None = None,
    prompt_logprobs: bool = False,
    tokenizer: Any = None,
) -> GenerateOutput:
    """Wraps GeneratorMixin.generate."""
    scored = (
        score_prompts(self, input_ids, attention_mask, sampling_params, adapter_indices) if prompt_logprobs else None
    )
    if scored and all(one.max_tokens == 1 and not one.stop_strings for one in sampling_params):
        return scored
    output = stock_generate(
        self,
        input_ids,
        attention_mask,
        sampling_params=sampling_params,
        adapter_indices=adapter_indices,
        tokenizer=tokenizer,
    )
    output.prompt_logprobs = scored.prompt_logprobs if scored else None
    return output


def next_wave(batch: types.PreparedSampleBatch, left: set[int], most: int) -> tuple[Part, bool]:
    """What is computed next of the rows that are left, and whether its prompts are scored. `most`: seats; 0: all."""
    most = most if most > 0 else power_of_two(len(batch.all_model_inputs))
    scored = {entry[2] for entry in batch.request_batch_slices if entry[4]}  # the first row of each request
    new = [one.max_tokens for one in batch.all_sampling_params]
    tokens = {row: tokens_of(batch.all_model_inputs[row]) for row in sorted(left)}
    merely = {row: count for row, count in tokens.items() if row in scored and new[row] == 1}
    if merely:
        part = parts(merely, lambda length: full_rows(length, most), prompt_length)[0]
        return part._replace(filled=filled_rows(len(part.rows), part.length, part.filled)), True
    is_scored = not scored.isdisjoint(left)
    rows = sorted((row for row in left if (row in scored) == is_scored), key=lambda row: -tokens[row])
    length = prompt_length(tokens[rows[0]])  # one wave for all lengths: answers take most of the time
    full = full_seats(room_for(length + max(new[row] for row in rows)), most)
    return Part(rows[:full], seats_for(len(rows), full), length), is_scored


def tokens_of(model_input: types.ModelInput) -> int:
    return sum(len(chunk.tokens) for chunk in model_input.chunks if isinstance(chunk, types.EncodedTextChunk))


def only_rows(batch: types.PreparedSampleBatch, rows: list[int], is_scored: bool) -> types.PreparedSampleBatch:
    """The batch with these rows, each of them as a request by its number."""
    names = [name for name in type(batch).model_fields if name.startswith("all_")]
    lists = {name: [getattr(batch, name)[row] for row in rows] for name in names}
    slices = [(str(row), "", place, place + 1, is_scored, 0) for place, row in enumerate(rows)]
    return batch.model_copy(update=lists | {"request_batch_slices": slices, "needs_prompt_logprobs": is_scored})


def in_waves(stock_sample: Any) -> Any:
    def sample(self: Any, prepared_batch: types.PreparedSampleBatch) -> dict:
        """Wraps JaxBackendImpl.sample: a call of it for each wave. Raises TooLarge."""
        backend.round_up_seq_len = prompt_length
        done: dict[str, types.SampleOutput] = {}
        best: dict[int, list[Any]] = {}  # of rows whose likeliest tokens were asked for
        left = set(range(len(prepared_batch.all_model_inputs)))
        while left:
            part, is_scored = next_wave(prepared_batch, left, self.config.sample_max_num_sequences)
            began = time.monotonic()
            seated = copy.copy(self)
            seated.config = self.config.model_copy(update={"sample_max_num_sequences": part.filled})
            engine_top_prompts.ask(prepared_batch, part.rows if is_scored else [])
            try:
                done |= stock_sample(seated, only_rows(prepared_batch, part.rows, is_scored))
                engine_top_prompts.asked.take(part.rows, prepared_batch, best)
            except TooLarge:
                if part.filled == 1:
                    raise
                make_smaller(prepared_batch, part, is_scored)
                continue
            left -= set(part.rows)
            engine_load.load.add(waves=1, wave_requests=len(part.rows), wave_seconds=time.monotonic() - began)
        return {entry[0]: joined(done, best, *entry[2:5]) for entry in prepared_batch.request_batch_slices}

    return sample


def make_smaller(batch: types.PreparedSampleBatch, part: Part, is_scored: bool) -> None:
    """Lowers the bound that this part has reached to half of it."""
    global wave_tokens
    new = max(batch.all_sampling_params[row].max_tokens for row in part.rows)
    if is_scored and new == 1:
        engine_shapes.pass_tokens = part.filled * part.length // 2
    else:
        wave_tokens = part.filled * (room_for(part.length + new) + state_tokens) // 2


def joined(done: dict[str, Any], best: dict[int, list[Any]], start: int, end: int, is_scored: bool) -> Any:
    """A request's answer from its rows'."""
    rows = [done[str(row)] for row in range(start, end)]
    prompt = rows[0].prompt_logprobs if is_scored else None
    sequences, top = [row.sequences[0] for row in rows], best.get(start)
    return types.SampleOutput(sequences=sequences, prompt_logprobs=prompt, topk_prompt_logprobs=top)


def apply() -> None:
    GeneratorMixin.generate = generate
    backend.JaxBackendImpl.sample = in_waves(backend.JaxBackendImpl.sample)
