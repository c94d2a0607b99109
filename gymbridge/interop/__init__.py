"""gymbridge's engines under the APIs of other libraries, each a module that needs an optional extra.

``import gymbridge`` imports none of them, and none of those libraries. A module whose library is missing raises an
``ImportError`` that names the extra.
"""
