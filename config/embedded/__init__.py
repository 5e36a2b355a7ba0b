"""A private Postgres and a private Valkey out of wheels. Plain Python: no Django, no settings.

Both listen on loopback only, on ports that were free, with random passwords. Everything they make
lies in one folder (`places.py`); nothing outside it changes owner or permissions.
"""
