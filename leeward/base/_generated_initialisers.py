# Made by ./dev generate
"""
The `__init__` of each shape of dataclass: frozen or not, and for each field whether it has a factory (+).

Runs in:   anywhere; pure. `dataclass` gives the fields their names.
"""

# ruff: noqa: E501, E702, F821
# mypy: ignore-errors

def _init_0(self, _0): _set(self, '_0', _0)
def _init_1(self, _0, _1): _set(self, '_0', _0); _set(self, '_1', _1)
def _init_2(self, _0, _1, _2): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2)
def _init_3(self, _0, _1, _2, _3): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3)
def _init_4(self, _0, _1, _2, _3, _4): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4)
def _init_5(self, _0, _1, _2, _3, _4, _5): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5)
def _init_6(self, _0, _1, _2, _3, _4, _5, _6): _set(self, '_0', _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6)
def _init_7(self, _0, _1, _2, _3, _4, _5, _6, _7, _8): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8)
def _init_8(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10)
def _init_9(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10)
def _init_10(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11)
def _init_11(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _make_7() if _7 is _NONE else _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _make_12() if _12 is _NONE else _12)
def _init_12(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14)
def _init_13(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _make_7() if _7 is _NONE else _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _12); _set(self, '_13', _make_13() if _13 is _NONE else _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _make_17() if _17 is _NONE else _17)
def _init_14(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _make_9() if _9 is _NONE else _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _make_19() if _19 is _NONE else _19); _set(self, '_20', _make_20() if _20 is _NONE else _20)

CODES = {
    (True, '-'): _init_0.__code__,
    (True, '--'): _init_1.__code__,
    (True, '---'): _init_2.__code__,
    (True, '----'): _init_3.__code__,
    (True, '-----'): _init_4.__code__,
    (True, '------'): _init_5.__code__,
    (True, '-+----+'): _init_6.__code__,
    (True, '---------'): _init_7.__code__,
    (True, '-----+--+--'): _init_8.__code__,
    (True, '-----------'): _init_9.__code__,
    (True, '-----+--+---'): _init_10.__code__,
    (True, '------++---++'): _init_11.__code__,
    (True, '-----+--+------'): _init_12.__code__,
    (True, '------++---+-+---+'): _init_13.__code__,
    (True, '----+---++---------++'): _init_14.__code__,
}
