"""The run's own model API for agents in containers: any client of OpenAI's or Anthropic's, answered token-exactly.

    prompts = Prompts(template)                            # one a run; UserError: the template renders no tools
    async with ModelApi() as endpoint:                     # one a run
        exchange = Exchange(Conversation(sampler, template, ...), prompts, max_turns=...)
        exchange.deadline = loop.time() + seconds          # when the agent starts
        key = endpoint.open(exchange)                      # the agent's API key
        await endpoint.serve(listening_socket, key)        # answers this trial alone; base URL http://127.0.0.1:PORT/v1
        ...                                                # the agent runs; `exchange.ended` is set at a limit
        reason = exchange.over                             # before `close`, which makes "" to "closed"
        await endpoint.close(key)                          # before artifacts and verifier
        Trajectory(turns=tuple(exchange.turns), side_segments=exchange.side_segments, stats=exchange.stats, ...)

Per batch `gate.judge` reads the trials' stats. Only `service.py` imports a web server.
"""
