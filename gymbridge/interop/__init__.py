"""gymbridge's engines under the APIs of other libraries, and theirs under ours, each a module that needs an extra.

``import gymbridge`` imports none of them, and none of those libraries. A module whose library is missing raises an
``ImportError`` that names the extra.
"""
