"""What browser runtimes share: a loopback server, npm packages, and a headless browser to drive.

A runtime's page folder holds ``runtime.js``, which sets ``window.edgewise``:

- ``ready``: a promise, fulfilled once the page can load a model;
- ``load(params)``: promises what was loaded;
- ``generate({messages | prompt, max_tokens, temperature, seed}, onText)``: promises
  ``{text, tokens, finish, ttft_ms, decode_tok_s}`` and calls ``onText`` with each piece of text;
- ``cancel()``: ends the running generation, whose ``finish`` is then ``cancelled``;
- ``info()``: promises ``{adapter, limits, threads, user_agent, cross_origin_isolated}``.

The page around it (``page/`` here) is the same for every runtime.
"""
