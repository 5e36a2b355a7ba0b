"""The protocol that every change of the outside world obeys: claim, send, record, find out.

A kind of effect (a refund, an e-mail, a store credit) brings its models and what is particular
to it (`effects.kinds.EffectKind`); the order of steps stands here, once.
"""
