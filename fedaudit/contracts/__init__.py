"""Contracts of every method, attack and audit, in tiny worlds: for our own files and for plugins from elsewhere
(`fedaudit check FOLDER`). A kept contract returns, a broken one raises AssertionError. Needs no pytest.
"""
