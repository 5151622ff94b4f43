"""
The rows that `terminal = true` adds to the table: pseudo-terminals, in a devpts of the job's own.

Runs in:   a developer's shell, where the programs are made, and the tests; pure data.
Who needs it: pty.spawn, pexpect, script, tmux; shells with job control; programs that write colours, progress and
           prompts to a terminal only; tests of such programs.
Costs:     the kernel's terminal code becomes reachable for jobs. So the operator has to allow it.
Stands:    a job sees only the terminals that it makes: its session has none, and no other one is in its view.
"""

from __future__ import annotations

from leeward.isolation.seccomp.rules import Needs, Rule, each

RULES: tuple[Rule, ...] = (
    *each("ioctl", 1, "TIOCGPTN TIOCSPTLCK TIOCGPTLCK TIOCGPTPEER",
          "openpty reads the number of the other end, unlocks it, and opens it", needs=Needs.TERMINAL),
    *each("ioctl", 1, "TCSETS TCSETSW TCSETSF TCSETS2 TCSETSW2 TCSETSF2 TCSBRK TCSBRKP TCXONC TCFLSH TIOCOUTQ",
          "tty.setraw, getpass, readline and stty set a terminal's modes", needs=Needs.TERMINAL),
    *each("ioctl", 1, "TIOCSCTTY TIOCNOTTY TIOCSPGRP TIOCGSID TIOCSIG",
          "job control sets a session's terminal, and the process group that reads from it", needs=Needs.TERMINAL),
    *each("ioctl", 1, "TIOCSWINSZ TIOCPKT TIOCGPKT", "set a terminal's size, and packet mode for programs such as"
          " telnet", needs=Needs.TERMINAL),
    # Refused also with this setting, because there is no row: TIOCSTI and TIOCLINUX, which put input into a terminal;
    # TIOCSETD, which loads a driver; TIOCCONS, which takes the console's output; TIOCVHANGUP.
)
