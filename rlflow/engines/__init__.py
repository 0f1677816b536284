"""What computes: engines behind protocols.

    tiny.py       a seeded tiny checkpoint in Hugging Face format, made at first use
    rollout/      who samples: the protocol, the HTTP client, the embedded server
    train/        who trains

Nothing here knows the language, the compiler or the run.
"""
