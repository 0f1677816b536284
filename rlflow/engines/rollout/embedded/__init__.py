"""The embedded rollout engine: SGLang's HTTP contract on torch alone.

    HTTP (uvloop, main thread)                         engine thread
    app.py ─ routes: generate, control, weights, info
      contract.py   body → Request, or 400             engine.py     inbox → step → answers
      answers.py    Request → response JSON               core.py       pause, abort, versions, memory; one step
                                                          scheduler.py  who is admitted (pure)
                                                          batch.py      the running rows as arrays
                                                          runner.py     prefill and decode on the transformers model
                                                          fixed_shapes.py  products that do not depend on the other rows
                                                          kv_cache.py   K/V slabs, one slot a row
                                                          sampling.py   next tokens and their log-probs (pure)
                                                          weights.py    load, update, release, fingerprint

One step of the engine thread: take what arrived, admit, prefill the admitted as right-padded batches of one width, decode one token
for every running row, hand back what finished. A request:

    held (arrived in a pause) → waiting → running → finished
                                   ↑         │ pause(retract)
                                   └─────────┘ outputs kept, prefilled again under the current weights

Differences from SGLang, all on the kind side: what kills SGLang's server (a wrong shape, an id outside the vocabulary,
release while busy, resume of what was not released) is a 400 here; unknown parameter names are a 400 instead of silence;
an update that would need a flush it cannot do changes nothing. Not supported, each with a 400 that says so: streaming, top log-probs,
penalties, constrained decoding, pickled tensors (nothing from a socket is unpickled; `load_format: "safetensors"` instead).
"""
