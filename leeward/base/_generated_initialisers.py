# Made by ./dev generate
"""
The `__init__` of each shape of dataclass: frozen or not, and for each field whether it has a factory (+).

Runs in:   anywhere; pure. `dataclass` gives the fields their names.
"""

# ruff: noqa: E501, E702, F821
# mypy: ignore-errors

def _init_0(self, _0): self._0 = _0
def _init_1(self, _0, _1): self._0 = _0; self._1 = _1
def _init_2(self, _0, _1, _2): self._0 = _0; self._1 = _make_1() if _1 is _NONE else _1; self._2 = _2
def _init_3(self, _0, _1, _2): self._0 = _0; self._1 = _1; self._2 = _make_2() if _2 is _NONE else _2
def _init_4(self, _0, _1, _2): self._0 = _0; self._1 = _1; self._2 = _2
def _init_5(self, _0, _1, _2, _3): self._0 = _0; self._1 = _make_1() if _1 is _NONE else _1; self._2 = _make_2() if _2 is _NONE else _2; self._3 = _make_3() if _3 is _NONE else _3
def _init_6(self, _0, _1, _2, _3): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3
def _init_7(self, _0, _1, _2, _3, _4): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _make_4() if _4 is _NONE else _4
def _init_8(self, _0, _1, _2, _3, _4): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4
def _init_9(self, _0, _1, _2, _3, _4, _5): self._0 = _0; self._1 = _make_1() if _1 is _NONE else _1; self._2 = _make_2() if _2 is _NONE else _2; self._3 = _3; self._4 = _4; self._5 = _5
def _init_10(self, _0, _1, _2, _3, _4, _5): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _make_5() if _5 is _NONE else _5
def _init_11(self, _0, _1, _2, _3, _4, _5, _6): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _5; self._6 = _6
def _init_12(self, _0, _1, _2, _3, _4, _5, _6, _7): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _make_5() if _5 is _NONE else _5; self._6 = _6; self._7 = _make_7() if _7 is _NONE else _7
def _init_13(self, _0, _1, _2, _3, _4, _5, _6, _7): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _5; self._6 = _6; self._7 = _7
def _init_14(self, _0, _1, _2, _3, _4, _5, _6, _7, _8): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _5; self._6 = _6; self._7 = _make_7() if _7 is _NONE else _7; self._8 = _8
def _init_15(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _5; self._6 = _6; self._7 = _7; self._8 = _8; self._9 = _9
def _init_16(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13): self._0 = _0; self._1 = _make_1() if _1 is _NONE else _1; self._2 = _2; self._3 = _make_3() if _3 is _NONE else _3; self._4 = _4; self._5 = _make_5() if _5 is _NONE else _5; self._6 = _make_6() if _6 is _NONE else _6; self._7 = _7; self._8 = _8; self._9 = _9; self._10 = _10; self._11 = _11; self._12 = _12; self._13 = _13
def _init_17(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16): self._0 = _0; self._1 = _1; self._2 = _2; self._3 = _3; self._4 = _4; self._5 = _5; self._6 = _6; self._7 = _7; self._8 = _8; self._9 = _make_9() if _9 is _NONE else _9; self._10 = _10; self._11 = _11; self._12 = _12; self._13 = _13; self._14 = _14; self._15 = _15; self._16 = _16
def _init_18(self): pass
def _init_19(self, _0): _set(self, '_0', _0)
def _init_20(self, _0, _1): _set(self, '_0', _make_0() if _0 is _NONE else _0); _set(self, '_1', _1)
def _init_21(self, _0, _1): _set(self, '_0', _0); _set(self, '_1', _1)
def _init_22(self, _0, _1, _2): _set(self, '_0', _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _make_2() if _2 is _NONE else _2)
def _init_23(self, _0, _1, _2): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _make_2() if _2 is _NONE else _2)
def _init_24(self, _0, _1, _2): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2)
def _init_25(self, _0, _1, _2, _3): _set(self, '_0', _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _2); _set(self, '_3', _3)
def _init_26(self, _0, _1, _2, _3): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3)
def _init_27(self, _0, _1, _2, _3, _4): _set(self, '_0', _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4)
def _init_28(self, _0, _1, _2, _3, _4): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4)
def _init_29(self, _0, _1, _2, _3, _4): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4)
def _init_30(self, _0, _1, _2, _3, _4, _5): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5)
def _init_31(self, _0, _1, _2, _3, _4, _5): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5)
def _init_32(self, _0, _1, _2, _3, _4, _5, _6): _set(self, '_0', _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6)
def _init_33(self, _0, _1, _2, _3, _4, _5, _6): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _make_6() if _6 is _NONE else _6)
def _init_34(self, _0, _1, _2, _3, _4, _5, _6): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6)
def _init_35(self, _0, _1, _2, _3, _4, _5, _6, _7): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7)
def _init_36(self, _0, _1, _2, _3, _4, _5, _6, _7): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7)
def _init_37(self, _0, _1, _2, _3, _4, _5, _6, _7, _8): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8)
def _init_38(self, _0, _1, _2, _3, _4, _5, _6, _7, _8): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8)
def _init_39(self, _0, _1, _2, _3, _4, _5, _6, _7, _8): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8)
def _init_40(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9): _set(self, '_0', _make_0() if _0 is _NONE else _0); _set(self, '_1', _make_1() if _1 is _NONE else _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _make_9() if _9 is _NONE else _9)
def _init_41(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9)
def _init_42(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9)
def _init_43(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10)
def _init_44(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _make_7() if _7 is _NONE else _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10)
def _init_45(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10)
def _init_46(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11)
def _init_47(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11)
def _init_48(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _make_3() if _3 is _NONE else _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12)
def _init_49(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _make_9() if _9 is _NONE else _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12)
def _init_50(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12)
def _init_51(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _make_7() if _7 is _NONE else _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _make_12() if _12 is _NONE else _12)
def _init_52(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12)
def _init_53(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _make_9() if _9 is _NONE else _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13)
def _init_54(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13)
def _init_55(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _make_4() if _4 is _NONE else _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14)
def _init_56(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _make_9() if _9 is _NONE else _9); _set(self, '_10', _make_10() if _10 is _NONE else _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _make_14() if _14 is _NONE else _14)
def _init_57(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14)
def _init_58(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15)
def _init_59(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15)
def _init_60(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _make_14() if _14 is _NONE else _14); _set(self, '_15', _make_15() if _15 is _NONE else _15); _set(self, '_16', _16)
def _init_61(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _make_7() if _7 is _NONE else _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _12); _set(self, '_13', _make_13() if _13 is _NONE else _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _make_17() if _17 is _NONE else _17)
def _init_62(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18)
def _init_63(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _make_8() if _8 is _NONE else _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _make_12() if _12 is _NONE else _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _19); _set(self, '_20', _20)
def _init_64(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _19); _set(self, '_20', _20)
def _init_65(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _make_5() if _5 is _NONE else _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _make_10() if _10 is _NONE else _10); _set(self, '_11', _make_11() if _11 is _NONE else _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _19); _set(self, '_20', _20); _set(self, '_21', _make_21() if _21 is _NONE else _21); _set(self, '_22', _make_22() if _22 is _NONE else _22)
def _init_66(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, _33, _34, _35, _36): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _make_6() if _6 is _NONE else _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _make_12() if _12 is _NONE else _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _19); _set(self, '_20', _20); _set(self, '_21', _21); _set(self, '_22', _22); _set(self, '_23', _23); _set(self, '_24', _24); _set(self, '_25', _25); _set(self, '_26', _26); _set(self, '_27', _27); _set(self, '_28', _28); _set(self, '_29', _29); _set(self, '_30', _30); _set(self, '_31', _make_31() if _31 is _NONE else _31); _set(self, '_32', _32); _set(self, '_33', _33); _set(self, '_34', _34); _set(self, '_35', _35); _set(self, '_36', _make_36() if _36 is _NONE else _36)
def _init_67(self, _0, _1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, _33, _34, _35, _36, _37, _38, _39, _40, _41, _42, _43, _44, _45, _46, _47, _48, _49, _50, _51, _52, _53, _54, _55, _56, _57, _58, _59, _60, _61, _62, _63): _set(self, '_0', _0); _set(self, '_1', _1); _set(self, '_2', _2); _set(self, '_3', _3); _set(self, '_4', _4); _set(self, '_5', _5); _set(self, '_6', _6); _set(self, '_7', _7); _set(self, '_8', _8); _set(self, '_9', _9); _set(self, '_10', _10); _set(self, '_11', _11); _set(self, '_12', _12); _set(self, '_13', _13); _set(self, '_14', _14); _set(self, '_15', _15); _set(self, '_16', _16); _set(self, '_17', _17); _set(self, '_18', _18); _set(self, '_19', _19); _set(self, '_20', _20); _set(self, '_21', _21); _set(self, '_22', _22); _set(self, '_23', _23); _set(self, '_24', _24); _set(self, '_25', _25); _set(self, '_26', _26); _set(self, '_27', _27); _set(self, '_28', _28); _set(self, '_29', _29); _set(self, '_30', _30); _set(self, '_31', _31); _set(self, '_32', _32); _set(self, '_33', _33); _set(self, '_34', _34); _set(self, '_35', _35); _set(self, '_36', _36); _set(self, '_37', _37); _set(self, '_38', _38); _set(self, '_39', _39); _set(self, '_40', _40); _set(self, '_41', _41); _set(self, '_42', _42); _set(self, '_43', _43); _set(self, '_44', _44); _set(self, '_45', _45); _set(self, '_46', _46); _set(self, '_47', _47); _set(self, '_48', _48); _set(self, '_49', _49); _set(self, '_50', _50); _set(self, '_51', _51); _set(self, '_52', _52); _set(self, '_53', _53); _set(self, '_54', _54); _set(self, '_55', _55); _set(self, '_56', _56); _set(self, '_57', _make_57() if _57 is _NONE else _57); _set(self, '_58', _58); _set(self, '_59', _59); _set(self, '_60', _make_60() if _60 is _NONE else _60); _set(self, '_61', _make_61() if _61 is _NONE else _61); _set(self, '_62', _make_62() if _62 is _NONE else _62); _set(self, '_63', _make_63() if _63 is _NONE else _63)

CODES = {
    (False, '-'): _init_0.__code__,
    (False, '--'): _init_1.__code__,
    (False, '-+-'): _init_2.__code__,
    (False, '--+'): _init_3.__code__,
    (False, '---'): _init_4.__code__,
    (False, '-+++'): _init_5.__code__,
    (False, '----'): _init_6.__code__,
    (False, '----+'): _init_7.__code__,
    (False, '-----'): _init_8.__code__,
    (False, '-++---'): _init_9.__code__,
    (False, '-----+'): _init_10.__code__,
    (False, '-------'): _init_11.__code__,
    (False, '-----+-+'): _init_12.__code__,
    (False, '--------'): _init_13.__code__,
    (False, '-------+-'): _init_14.__code__,
    (False, '----------'): _init_15.__code__,
    (False, '-+-+-++-------'): _init_16.__code__,
    (False, '---------+-------'): _init_17.__code__,
    (True, ''): _init_18.__code__,
    (True, '-'): _init_19.__code__,
    (True, '+-'): _init_20.__code__,
    (True, '--'): _init_21.__code__,
    (True, '-++'): _init_22.__code__,
    (True, '--+'): _init_23.__code__,
    (True, '---'): _init_24.__code__,
    (True, '-+--'): _init_25.__code__,
    (True, '----'): _init_26.__code__,
    (True, '-+---'): _init_27.__code__,
    (True, '----+'): _init_28.__code__,
    (True, '-----'): _init_29.__code__,
    (True, '-----+'): _init_30.__code__,
    (True, '------'): _init_31.__code__,
    (True, '-+----+'): _init_32.__code__,
    (True, '-----++'): _init_33.__code__,
    (True, '-------'): _init_34.__code__,
    (True, '----+---'): _init_35.__code__,
    (True, '--------'): _init_36.__code__,
    (True, '----+---+'): _init_37.__code__,
    (True, '-----+--+'): _init_38.__code__,
    (True, '---------'): _init_39.__code__,
    (True, '++------++'): _init_40.__code__,
    (True, '------+---'): _init_41.__code__,
    (True, '----------'): _init_42.__code__,
    (True, '------+----'): _init_43.__code__,
    (True, '-------+---'): _init_44.__code__,
    (True, '-----------'): _init_45.__code__,
    (True, '-----+--+---'): _init_46.__code__,
    (True, '------------'): _init_47.__code__,
    (True, '---++--------'): _init_48.__code__,
    (True, '----+++--+---'): _init_49.__code__,
    (True, '-----+--+----'): _init_50.__code__,
    (True, '------++---++'): _init_51.__code__,
    (True, '--------+----'): _init_52.__code__,
    (True, '----++---+----'): _init_53.__code__,
    (True, '--------------'): _init_54.__code__,
    (True, '----+----------'): _init_55.__code__,
    (True, '---------++---+'): _init_56.__code__,
    (True, '---------------'): _init_57.__code__,
    (True, '-----+--+-------'): _init_58.__code__,
    (True, '----------------'): _init_59.__code__,
    (True, '-----------+--++-'): _init_60.__code__,
    (True, '------++---+-+---+'): _init_61.__code__,
    (True, '-------------------'): _init_62.__code__,
    (True, '--------+---+--------'): _init_63.__code__,
    (True, '---------------------'): _init_64.__code__,
    (True, '-----+----++---------++'): _init_65.__code__,
    (True, '------+-----+------------------+----+'): _init_66.__code__,
    (True, '---------------------------------------------------------+--++++'): _init_67.__code__,
}
