"""
`TypedDict` as `typing` has it, without what it does for each annotation.

Runs in:   anybody's program. To a type checker this is the one of `typing`, whose class compiles every annotation that
           is text: 80 of them are a tenth of what importing leeward.client.sandbox takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypedDict as TypedDict
else:
    class _OptionsType(type):
        """
        The class of such classes: `__annotations__` has the names of the bases as well, and a call makes a dict.
        """

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], total: bool = True) -> type:
            made = super().__new__(cls, name, bases, namespace)
            own = vars(made).get("__annotations__", {})
            made.__annotations__ = {name: text for each in (*bases, None)
                                    for name, text in (own if each is None else each.__annotations__).items()}
            return made

        def __call__(cls, **options: Any) -> dict[str, Any]:
            return options

    class TypedDict(metaclass=_OptionsType):
        pass
